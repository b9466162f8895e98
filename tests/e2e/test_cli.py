"""The command line from outside: answers, exit codes, one sentence for every mistake."""

import signal
import sys
import time
from pathlib import Path

import pytest
from toy_process import Qac, start

from qac_jax import artifacts, cli


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The toy stages as verbs."""
    for name, cls in (("numbers", "Numbers"), ("double", "Doubled")):
        monkeypatch.setitem(cli.VERBS, name, cli.Verb(name, f"toy_stages:{cls}", name))


def test_a_stage_from_flags_to_artefact(tmp_path: Path, qac: Qac) -> None:
    out = tmp_path / "n"
    record = qac.json("numbers", "--count", 4, "--out", out)
    assert record == {"kind": "numbers", "count": 4, "identity": artifacts.load(out).identity}
    assert "is up to date" in qac("numbers", "--count=4", "--out", out).err
    qac("numbers", "--gin.toy_stages.Numbers.count=5", "--overwrite", "--out", out)
    assert artifacts.load(out).count == 5
    qac("double", "--numbers", out, "--out", tmp_path / "d")
    assert artifacts.load(tmp_path / "d").inputs == {"numbers": artifacts.load(out).identity}


def test_a_dry_run_reads_and_writes_nothing(tmp_path: Path, qac: Qac) -> None:
    (tmp_path / "toy.gin").write_text("import toy_stages\nrecipe = @toy_stages.toy()\n")
    given = [tmp_path / "toy.gin", "--out", tmp_path / "o"]
    for words in (["run", *given, "--dry_run"], ["plan", *given]):
        record = qac.json(*words)
        assert [s["plan"].get("items") for s in record["stages"]] == [10, 10, None]
    assert "count = 3" in qac("numbers", "--dry_run", "--count", 3).out
    assert not (tmp_path / "o").exists()


def test_mistakes_are_one_sentence(tmp_path: Path, qac: Qac) -> None:
    out = tmp_path / "out"
    assert "did you mean 'prepare'" in qac.refused("prepair")
    assert "did you mean --count" in qac.refused("numbers", "--cuont", 3, "--out", out)
    assert "did you mean --index" in qac.refused("search", "--idex", "x", "lamps")
    assert "invalid int value: 'x'" in qac.refused("numbers", "--count", "x", "--out", out)
    missing = qac.refused("double", "--numbers", tmp_path / "no", "--out", out)
    assert "does not exist" in missing
    assert "gin file nope.gin does not exist" in qac.refused("run", "nope.gin", "--out", out)
    assert not out.exists()


def test_foreign_folders_and_full_disks(tmp_path: Path, qac: Qac) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a")
    assert "not a folder of ours" in qac.refused("numbers", "--out", tmp_path / "mine")
    full = tmp_path / "full"
    filled = qac.refused("numbers", "--full_disk", "--out", full)
    assert "the disk is full while writing" in filled
    assert "is unfinished" in qac.refused("inspect", full)
    qac("numbers", "--out", full)  # the same command completes it


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
def test_a_signal_in_the_middle_of_a_stage(tmp_path: Path, qac: Qac, number: int) -> None:
    out = tmp_path / "n"
    process = start("numbers", "--pause", "0.4", "--shards", "20", "--out", out)
    deadline = time.monotonic() + 60
    while not (out / "numbers-00000.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number and "Traceback" not in said
        assert said.strip().split("\n")[-1].startswith("qac: interrupted by signal")
    assert "is unfinished" in qac.refused("inspect", out)
    for folder in (out, tmp_path / "whole"):
        qac("numbers", "--shards", 20, "--out", folder)
    artifacts.load(out).verify()
    assert artifacts.load(out).identity == artifacts.load(tmp_path / "whole").identity
    assert not list(out.glob("*.part"))


def test_ray_is_asked_for_where_it_is_missing(tmp_path, monkeypatch, qac) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.txt").write_text("A text.")
    words = ["prepare", "--documents", tmp_path / "a.txt", "--out", tmp_path / "out"]
    assert "pip install 'qac_jax[ray]'" in qac.refused(*words, "--engine", "ray")
    qac(*words)
