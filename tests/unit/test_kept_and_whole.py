"""Whatever moment a run is killed at: nothing lost, nothing half, nothing of others removed."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from toy_kills import Killed, at_operation, operations

from qac_jax import artifacts
from qac_jax.artifacts import durable, verifying
from qac_jax.errors import UserError


def write(out: Path, key: str = "k", *, replace: bool = False) -> artifacts.Artifact:
    """A run with everything that a stage may do: files, an adopted folder, scratch, a log."""
    with artifacts.create(out, kind="words", key=key, replace=replace) as writer:
        for i, word in enumerate(("a", "b")):
            if f"words-{i}.txt" not in writer.done:
                with writer.open(f"words-{i}.txt") as file:
                    file.write(word + key)
        if "tokenizer/a.json" not in writer.done:
            folder = writer.path / "tokenizer"
            folder.mkdir(exist_ok=True)
            for name in ("a.json", "b.json"):
                (folder / name).write_text(name)
            writer.adopt("tokenizer")
        state = writer.scratch("training") / "checkpoints"
        state.mkdir(parents=True, exist_ok=True)
        (state / "meta").write_text("1")
        writer.count = 2
    return artifacts.load(out)


def again(out: Path) -> artifacts.Artifact:
    """The same command once more, as `stage.execute` does it."""
    record = artifacts.peek(out)
    if record is not None and record["finished"]:
        artifacts.tidy(out)
        return artifacts.load(out)
    return write(out)


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_killed_at_every_operation_nothing_is_lost_or_refused(tmp_path):
    """Fault 5 (refused for ever), 1 (bricked), 4 (whole without its files), 6 (rubbish inside)."""
    whole = write(tmp_path / "whole")
    for at in range(1, operations(lambda: write(tmp_path / "count"), tmp_path / "count") + 1):
        out = tmp_path / f"at-{at}"
        with pytest.raises(Killed):
            at_operation(at, out, partial(write, out))
        assert again(out).identity == whole.identity, f"killed at operation {at}"
        assert names(out) == names(tmp_path / "whole"), f"killed at operation {at}"


def test_killed_while_another_artefact_is_replaced(tmp_path):
    whole = write(tmp_path / "whole", "new")

    def replace(out: Path) -> None:
        write(out, "new", replace=True)

    write(tmp_path / "count", "old")
    count = operations(lambda: replace(tmp_path / "count"), tmp_path / "count")
    for at in range(1, count + 1):
        out = tmp_path / f"at-{at}"
        write(out, "old")
        with pytest.raises(Killed):
            at_operation(at, out, partial(replace, out))
        record = artifacts.peek(out)
        assert record is not None, f"after operation {at} the folder is nobody's"
        if record["finished"]:
            artifacts.load(out)  # whole, be it the old or the new one
        replace(out)
        assert artifacts.load(out).identity == whole.identity
        assert names(out) == names(tmp_path / "whole"), f"killed at operation {at}"


def test_killed_while_a_folder_is_removed(tmp_path):
    """As `qac run --from` does."""
    write(tmp_path / "count")
    count = operations(lambda: artifacts.remove(tmp_path / "count"), tmp_path / "count")
    for at in range(1, count + 1):
        out = tmp_path / f"at-{at}"
        write(out)
        with pytest.raises(Killed):
            at_operation(at, out, partial(artifacts.remove, out))
        artifacts.remove(out)
        assert not out.exists()


@pytest.mark.parametrize("trace", [".unfinished.json.part", ".journal.jsonl.part", ".lock"])
def test_refused_for_ever_after_a_kill_in_the_first_milliseconds(trace, tmp_path):
    """Fault 5."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / trace).write_text("{")
    assert write(tmp_path / "a").count == 2


def test_whole_without_its_files(tmp_path):
    """Fault 4: a folder is complete when all of its files are, not when the first one is."""
    with pytest.raises(Killed):
        at_operation(0, tmp_path / "a", lambda: write(tmp_path / "a"), stop="tokenizer")
    (tmp_path / "a" / "tokenizer" / "b.json").unlink(missing_ok=True)
    assert "tokenizer/b.json" in write(tmp_path / "a").files


@pytest.mark.parametrize("state", ["unfinished", "finished", "deep"])
def test_clearing_never_follows_links(state, tmp_path):
    """Fault 3: resuming removed files outside of --out."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    out = tmp_path / "a"
    if state == "finished":
        write(out)
    else:
        with pytest.raises(Killed):
            at_operation(0, out, lambda: write(out), stop="tokenizer")
    where = out / "tokenizer" if state == "deep" else out
    where.mkdir(exist_ok=True)
    (where / "link").symlink_to(precious)
    for key in ("k", "other"):
        with pytest.raises(UserError, match="link is a link to .*precious.* remove the link"):
            write(out, key, replace=True)
    with pytest.raises(UserError, match="is a link to"):
        artifacts.remove(out)
    assert (precious / "thesis.tex").read_text() == "years"
    (where / "link").unlink()
    assert write(out, "other", replace=True).count == 2


def test_what_a_killed_run_left_half_is_removed(tmp_path):
    """Fault 6: an exported folder kept `..model.PID.part` with full weights."""
    with artifacts.create(tmp_path / "a", kind="words") as writer:
        left = tmp_path / "a" / "..model.17.part"
        left.mkdir()
        (left / "model.safetensors").write_text("gigabytes")
        with writer.open("x") as file:
            file.write("x")
    assert names(tmp_path / "a") == {"x", "artifact.json", ".lock"}


def test_silent_damage_of_equal_size_is_refused(tmp_path, monkeypatch):
    """Fault 7: other bytes of the same length gave other rankings with exit code 0."""
    write(tmp_path / "a")
    artifacts.load(tmp_path / "a")
    file = tmp_path / "a" / "words-0.txt"
    file.write_text("zz")
    with pytest.raises(UserError, match="words-0.txt is damaged: its bytes are not those"):
        artifacts.load(tmp_path / "a")
    monkeypatch.setenv(verifying.VARIABLE, "0")
    assert artifacts.load(tmp_path / "a").count == 2, "--no_verify"
    monkeypatch.delenv(verifying.VARIABLE)
    (tmp_path / "a").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="words-0.txt is damaged"):
        artifacts.load(tmp_path / "moved")


def test_bytes_are_compared_once(tmp_path, monkeypatch):
    """The cost: one reading of what comes from elsewhere, none of what was written here."""
    read = []

    def counted(path):
        read.append(Path(path).name)
        return real(path)

    real = verifying.hash_file
    monkeypatch.setattr(verifying, "hash_file", counted)
    write(tmp_path / "a")
    artifacts.load(tmp_path / "a")
    assert read == []
    os.utime(tmp_path / "a" / "words-1.txt", (1, 1))  # as a copy would have
    for _ in range(2):
        artifacts.load(tmp_path / "a")
    assert read == ["words-1.txt"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", -1),
        ("count", "x"),
        ("info", []),
        ("files", {"../up": {"size": 1, "sha256": ""}}),
        ("files", {"/etc/passwd": {"size": 1, "sha256": ""}}),
        ("files", {"a": 3}),
        ("files", {"a": {"size": "x", "sha256": ""}}),
        ("files", {"a\0b": {"size": 1, "sha256": ""}}),
        ("kind", None),
        ("key", 3),
        ("seed", "x"),
        ("fields", None),
    ],
)
def test_a_damaged_record_is_refused_in_a_sentence(name, value, tmp_path):
    """Fault 11, also where the record bears no hash of itself."""
    write(tmp_path / "a")
    commit = tmp_path / "a" / artifacts.COMMIT
    record = json.loads(commit.read_text())
    for seal in (True, False):
        changed = {**record, name: value}
        if not seal:
            changed.pop("record_sha256")
        commit.write_text(json.dumps(changed))
        with pytest.raises(UserError, match="cannot be read"):
            artifacts.load(tmp_path / "a")
        with pytest.raises(UserError):
            write(tmp_path / "a", "other")


NOISE = ["[" * 200_000, "\0" * 9, "3", "null", '{"format": "qac_jax"}', ""]


@pytest.mark.parametrize("text", NOISE, ids=range(len(NOISE)))
def test_noise_for_a_record_claim_or_journal(text, tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / artifacts.COMMIT).write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        artifacts.load(tmp_path / "a")
    assert artifacts.peek(tmp_path / "a") is None
    with pytest.raises(Killed):
        at_operation(0, tmp_path / "b", lambda: write(tmp_path / "b"), stop="tokenizer")
    (tmp_path / "b" / artifacts.JOURNAL).write_text(text + "\n")
    assert write(tmp_path / "b").count == 2


@pytest.mark.parametrize(
    "before, after", [('"count": 2', '"count": 3'), ('"record_sha256"', '"recort_sha256"')]
)
def test_a_change_in_a_record_is_noticed(before, after, tmp_path):
    write(tmp_path / "a")
    commit = tmp_path / "a" / artifacts.COMMIT
    commit.write_text(commit.read_text().replace(before, after))
    with pytest.raises(UserError, match="it was changed after it was written"):
        artifacts.load(tmp_path / "a")


def test_files_are_on_the_disk_before_they_are_relied_upon(tmp_path, monkeypatch):
    """Fault 16: what a file system may drop at a loss of power was synced before the commit."""
    log: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        log.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_sync(descriptor)

    def replace(source: str, target: str) -> None:
        log.append(("move", str(target)))
        real_replace(source, target)

    monkeypatch.setenv(durable.VARIABLE, "1")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    out = tmp_path / "a"
    write(out)
    committed = log.index(("move", str(out / artifacts.COMMIT)))
    before = {path for what, path in log[:committed] if what == "sync"}
    wanted = {"words-0.txt.part", "words-1.txt.part", "artifact.json.part"}
    wanted |= {"tokenizer", "tokenizer/a.json", "tokenizer/b.json", ""}
    assert {str(out / name).rstrip("/") for name in wanted} <= before
    assert ("sync", str(out)) in log[committed:]
    log.clear()
    monkeypatch.setenv(durable.VARIABLE, "0")
    write(tmp_path / "b")
    assert not [entry for entry in log if entry[0] == "sync"], "--no_fsync"
