"""The command line from outside: answers, exit codes, one sentence for every mistake."""

import json
import signal
import sys
import time

import pytest
from toy_process import start

from qac_jax import artifacts, cli


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """The toy stages as verbs."""
    for name, cls in (("numbers", "Numbers"), ("double", "Doubled")):
        monkeypatch.setitem(cli.VERBS, name, cli.Verb(name, f"toy_stages:{cls}", name))


def complaint(capsys, *arguments: object) -> str:
    """Runs a command that must fail with one sentence and exit code 2."""
    assert cli.main([str(a) for a in arguments]) == 2
    said = capsys.readouterr().err.strip().split("\n")[-1]
    assert said.startswith("qac: ")
    return said


def test_a_stage_from_flags_to_artefact(tmp_path, capsys):
    out = tmp_path / "n"
    assert cli.main(["numbers", "--count", "4", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == {"kind": "numbers", "count": 4, "identity": artifacts.load(out).identity}
    assert cli.main(["numbers", "--count=4", "--out", str(out)]) == 0
    assert "is up to date" in capsys.readouterr().err
    changed = ["--gin.toy_stages.Numbers.count=5", "--overwrite"]
    assert cli.main(["numbers", *changed, "--out", str(out)]) == 0
    assert artifacts.load(out).count == 5
    assert cli.main(["double", "--numbers", str(out), "--out", str(tmp_path / "d")]) == 0
    assert artifacts.load(tmp_path / "d").inputs == {"numbers": artifacts.load(out).identity}


def test_a_dry_run_reads_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "toy.gin").write_text("import toy_stages\nrecipe = @toy_stages.toy()\n")
    given = [str(tmp_path / "toy.gin"), "--json", "--out", str(tmp_path / "o")]
    for words in (["run", *given, "--dry_run"], ["plan", *given]):
        assert cli.main(words) == 0
        record = json.loads(capsys.readouterr().out)
        assert [s["plan"].get("items") for s in record["stages"]] == [10, 10, None]
    assert cli.main(["numbers", "--dry_run", "--count", "3"]) == 0
    assert "count = 3" in capsys.readouterr().out
    assert not (tmp_path / "o").exists()


def test_mistakes_are_one_sentence(tmp_path, capsys):
    out = tmp_path / "out"
    assert "did you mean 'prepare'" in complaint(capsys, "prepair")
    assert "did you mean --count" in complaint(capsys, "numbers", "--cuont", "3", "--out", out)
    assert "did you mean --index" in complaint(capsys, "search", "--idex", "x", "lamps")
    assert "invalid int value: 'x'" in complaint(capsys, "numbers", "--count", "x", "--out", out)
    missing = ("--numbers", tmp_path / "no", "--out", out)
    assert "does not exist" in complaint(capsys, "double", *missing)
    assert "gin file nope.gin does not exist" in complaint(capsys, "run", "nope.gin", "--out", out)
    assert not out.exists()


def test_foreign_folders_and_full_disks(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("a")
    assert "not a folder of ours" in complaint(capsys, "numbers", "--out", tmp_path / "mine")
    full = tmp_path / "full"
    filled = complaint(capsys, "numbers", "--full_disk", "--out", full)
    assert "the disk is full while writing" in filled
    assert "is unfinished" in complaint(capsys, "inspect", full)
    assert cli.main(["numbers", "--out", str(full)]) == 0, "the same command completes it"


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
def test_a_signal_in_the_middle_of_a_stage(tmp_path, capsys, number):
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
    assert "is unfinished" in complaint(capsys, "inspect", out)
    for folder in (out, tmp_path / "whole"):
        assert cli.main(["numbers", "--shards", "20", "--out", str(folder)]) == 0
    artifacts.load(out).verify()
    assert artifacts.load(out).identity == artifacts.load(tmp_path / "whole").identity
    assert not list(out.glob("*.part"))


def test_ray_is_asked_for_where_it_is_missing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.txt").write_text("A text.")
    words = ["prepare", "--documents", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out")]
    assert cli.main([*words, "--engine", "ray"]) == 2
    assert "pip install 'qac_jax[ray]'" in capsys.readouterr().err
    assert cli.main(words) == 0
