"""Links that a stranger put into a folder lead nothing out of it, and names outlive the power."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import toy_live
from toy_kills import Killed, at_operation

from qac_jax import artifacts
from qac_jax.artifacts import durable
from qac_jax.errors import UserError
from qac_jax.live.index import LiveIndex


def write(out: Path, key: str = "k", *, replace: bool = False) -> artifacts.Artifact:
    with artifacts.create(out, kind="words", key=key, replace=replace) as writer:
        for name in ("words-0.txt", "tokenizer.json"):
            if name not in writer.done:
                with writer.open(name) as file:
                    file.write(name + key)
        (writer.scratch("training") / "state").write_text("1")
        writer.count = 2
    return artifacts.load(out)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere" / "thesis.tex"
    file.parent.mkdir()
    file.write_text("years of work")
    return file


def test_a_lock_that_is_a_link_does_not_empty_a_file_elsewhere(thesis, tmp_path):
    (tmp_path / "a").mkdir()
    lock = tmp_path / "a" / artifacts.LOCK
    lock.symlink_to(thesis)
    with pytest.raises(UserError, match="lock is a link to .*thesis.tex.*remove the link"):
        write(tmp_path / "a")
    assert thesis.read_text() == "years of work"
    lock.unlink()
    assert write(tmp_path / "a").count == 2


@pytest.mark.parametrize("name", [".unfinished.json", ".journal.jsonl", "artifact.json", "deep"])
@pytest.mark.parametrize("state", ["new", "unfinished", "finished"])
def test_a_link_for_a_temporary_file_does_not_empty_a_file_elsewhere(name, state, thesis, tmp_path):
    out = tmp_path / "a"
    out.mkdir()
    if state == "finished":
        write(out, "other")
    elif state == "unfinished":
        with pytest.raises(Killed):
            at_operation(0, out, lambda: write(out), stop="tokenizer")
    if name == "deep":
        name = ".scratch/training/words-0.txt"
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    link = out / (name + artifacts.PART)
    link.symlink_to(thesis)
    if name.startswith(".scratch") and state == "new":
        with pytest.raises(UserError, match="not a folder of ours"):
            write(out, replace=True)
    else:
        assert write(out, replace=True).count == 2
        assert not os.path.lexists(link)
    assert thesis.read_text() == "years of work"


def test_a_link_in_a_living_index_is_removed_itself(thesis, tmp_path):
    toy_live.live(tmp_path / "live", toy_live.records(3))
    (tmp_path / "live" / "segment-000099").symlink_to(thesis.parent)
    (tmp_path / "live" / ("artifact.json" + artifacts.PART)).symlink_to(thesis)
    live = LiveIndex(tmp_path / "live", encoder=toy_live.stub())
    live.add(toy_live.records(2, 3))
    assert len(live) == 5 and thesis.read_text() == "years of work"


def test_names_of_new_folders_are_on_the_disk(tmp_path, monkeypatch):
    """Else a loss of power takes a finished result with the folder that it is in."""
    synced: list[str] = []
    monkeypatch.setenv(durable.VARIABLE, "1")
    monkeypatch.setattr(os, "fsync", lambda d: synced.append(os.readlink(f"/proc/self/fd/{d}")))
    write(tmp_path / "new" / "a")
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "a")} <= set(synced)


def test_a_living_index_names_only_what_is_on_the_disk(tmp_path, monkeypatch):
    """The names of segments and of their deletions reach it before the record that names them."""
    live = toy_live.live(tmp_path / "live", toy_live.records(4))
    log: list[str] = []
    real = os.replace
    monkeypatch.setenv(durable.VARIABLE, "1")
    monkeypatch.setattr(os, "fsync", lambda d: log.append(os.readlink(f"/proc/self/fd/{d}")))

    def replace(source: str, target: str) -> None:
        log.append(f"to {target}")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    live.delete(["d1"])
    committed = log.index(f"to {tmp_path / 'live' / artifacts.COMMIT}")
    deletions = [n for n, path in enumerate(log) if ".deleted-" in path]
    assert deletions and str(tmp_path / "live") in log[deletions[-1] : committed]
    assert str(tmp_path / "live") in log[committed:]
