"""Artefacts: whole or refused, whenever a run is killed; identity is the content's; nothing that a
run has not written is ever removed."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import toy_live
from toy_kills import Killed, at_operation, operations

from qac_jax import artifacts
from qac_jax.artifacts import arrays, disk, hashing, reading
from qac_jax.errors import UserError


def write(out: Path, key: str = "k", *, replace: bool = False, **options) -> artifacts.Artifact:
    """A run with everything that a stage may do: files, an adopted folder, scratch, a log."""
    with artifacts.create(out, kind="words", key=key, replace=replace, **options) as writer:
        for i, word in enumerate(("a", "b")):
            if f"words-{i}.txt" not in writer.done:
                with writer.open(f"words-{i}.txt") as file:
                    file.write(word + key)
        if "tokenizer/a.json" not in writer.done:
            folder = writer.begin("tokenizer")
            folder.mkdir()
            for name in ("a.json", "b.json"):
                (folder / name).write_text(name)
            writer.adopt("tokenizer")
        state = writer.scratch("training") / "checkpoints"
        state.mkdir(parents=True, exist_ok=True)
        (state / "meta").write_text("1")
        writer.count = 2
    return artifacts.load(out)


def killed(out: Path, stop: str = "tokenizer") -> None:
    """A run that is killed at its first operation on a path with `stop` in it."""
    with pytest.raises(Killed):
        at_operation(0, out, lambda: write(out), stop=stop)


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_a_finished_folder_tells_what_it_is(tmp_path):
    artifact = write(tmp_path / "a")
    again = artifacts.load(tmp_path / "a", kind="words")
    assert (again.kind, again.count, again.identity) == ("words", 2, artifact.identity)
    assert again.file("words-1.txt").read_text() == "bk"
    assert names(tmp_path / "a") == {*artifact.files, "artifact.json", ".lock"}
    again.verify()
    with pytest.raises(UserError, match="has no vectors.npy"):
        again.file("vectors.npy")


def test_identity_is_the_content_and_nothing_else(tmp_path):
    one = write(tmp_path / "1", fields={"a": 1}, seed=1)
    two = write(tmp_path / "2", fields={"a": 2}, seed=2)
    assert one.identity == two.identity != write(tmp_path / "3", "other").identity
    identities = set()
    for noise in ("x", "y"):
        with artifacts.create(tmp_path / noise, kind="k") as writer:
            writer.begin("log.txt").write_text(noise)
            writer.adopt("log.txt", volatile=True)
            writer.begin("params").mkdir()
            (tmp_path / noise / "params" / "chunk").write_text(noise)
            writer.adopt("params", identity="same arrays")
        identities.add(artifacts.load(tmp_path / noise).identity)
    assert len(identities) == 1


# What is missing, of another kind or damaged is refused in a sentence.


def test_missing_and_foreign_kinds_are_refused(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(UserError, match="is of kind 'words'; expected passages or contexts"):
        artifacts.load(tmp_path / "a", kind=("passages", "contexts"))
    with pytest.raises(UserError, match="does not exist"):
        artifacts.load(tmp_path / "b")
    killed(tmp_path / "c")
    with pytest.raises(UserError, match="is unfinished .words, begun by .* re-run that command"):
        artifacts.load(tmp_path / "c")


def test_damage_is_refused(tmp_path, monkeypatch):
    for n, (damage, sentence) in enumerate(
        (
            (lambda p: (p / "words-0.txt").unlink(), "is damaged: words-0.txt is missing"),
            (lambda p: (p / "words-0.txt").write_text("abc"), "is damaged: words-0.txt is 3 bytes"),
            (lambda p: (p / "artifact.json").unlink(), "is not a folder of ours"),
            (lambda p: (p / "words-0.txt").write_text("zz"), "damaged: its bytes are not those"),
        )
    ):
        artifact = write(tmp_path / str(n))
        damage(artifact.path)
        with pytest.raises(UserError, match=sentence):
            artifacts.load(artifact.path)
    with pytest.raises(UserError, match=sentence):
        artifact.verify()
    monkeypatch.setenv(reading.VERIFY, "0")
    assert artifacts.load(artifact.path).count == 2


def test_a_damaged_record_is_refused_and_a_damaged_journal_is_none(tmp_path):
    """Also where the record bears no hash of itself."""
    write(tmp_path / "a")
    commit = tmp_path / "a" / artifacts.COMMIT
    record = json.loads(commit.read_text())
    bare = {name: value for name, value in record.items() if name != "record_sha256"}
    outside = {"../up": {"size": 1, "sha256": ""}}
    changes = ({"files": outside}, {"files": {"a": 3}}, {"kind": None})
    changed = [record | {"count": 3}, *(bare | change for change in changes)]
    for text in ("[" * 200_000, "3", "{", *map(json.dumps, changed)):
        commit.write_text(text)
        with pytest.raises(UserError, match="cannot be read"):
            artifacts.load(tmp_path / "a")
        with pytest.raises(UserError):
            write(tmp_path / "a", "other")
    for text in ("[" * 200_000, "3", "{"):
        killed(tmp_path / text[:2], stop="words-0.txt")
        (tmp_path / text[:2] / artifacts.JOURNAL).write_text(text + "\n")
        assert write(tmp_path / text[:2]).count == 2


def test_bytes_are_compared_once(tmp_path, monkeypatch):
    """The cost: one reading of what comes from elsewhere, none of what was written here."""
    write(tmp_path / "a")
    counted = Mock(wraps=hashing.hash_file)
    monkeypatch.setattr(hashing, "hash_file", counted)
    artifacts.load(tmp_path / "a")
    os.utime(tmp_path / "a" / "words-1.txt", (1, 1))  # as a copy would have
    for _ in range(2):
        artifacts.load(tmp_path / "a")
    counted.assert_called_once_with(str(tmp_path / "a" / "words-1.txt"))


def test_a_damaged_cache_of_hashes_calls_no_file_damaged(tmp_path, monkeypatch):
    """What its notes say wrongly is read again: damaged notes, and whole ones of other bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    a = write(tmp_path / "a")
    (notes,) = (hashing.user_cache() / "hashes").iterdir()
    for damage in (b"", b"{}", b"\xff", notes.read_bytes()[:-9]):
        notes.write_bytes(damage)
        assert artifacts.load(a.path).identity == a.identity
    text = notes.read_text()
    changed = text.replace(hashing.hash_file(a.path / "words-1.txt")[:9], "0" * 9)
    assert changed != text
    notes.write_text(changed)
    assert hashing.hashes(a.path, ["words-1.txt"])["words-1.txt"][:9] != "0" * 9
    hashing.remember(a.path, {"words-1.txt": "0" * 64})
    assert artifacts.load(a.path).identity == a.identity
    (a.path / "words-1.txt").write_text("x" * a.record["files"]["words-1.txt"]["size"])
    with pytest.raises(UserError, match="damaged"):
        artifacts.load(a.path)


# Whatever moment a run is killed at: nothing lost, nothing half, nothing refused.


def again(out: Path) -> artifacts.Artifact:
    """The same command once more, as `stage.execute` does it."""
    record = artifacts.peek(out)
    if record is not None and record["finished"]:
        artifacts.tidy(out)
        return artifacts.load(out)
    return write(out)


@pytest.mark.parametrize("kind", ["written", "replaced", "removed"])
def test_killed_at_every_operation_nothing_is_lost_or_refused(kind, tmp_path):
    """Removed: as `qac run --from` does."""
    whole = write(tmp_path / "whole")
    actions: dict[str, Callable[[Path], object]] = {
        "written": write,
        "replaced": partial(write, replace=True),
        "removed": artifacts.remove,
    }

    def prepared(name: str) -> Path:
        if kind != "written":
            write(tmp_path / name, "old")
        return tmp_path / name

    act, count = actions[kind], prepared("count")
    for at in range(1, operations(lambda: act(count), count) + 1):
        out = prepared(f"at-{at}")
        with pytest.raises(Killed):
            at_operation(at, out, partial(act, out))
        if kind == "removed":
            artifacts.remove(out)
            assert not out.exists()
            continue
        if kind == "replaced":
            record = artifacts.peek(out)
            assert record is not None, f"after operation {at} the folder is nobody's"
            if record["finished"]:
                artifacts.load(out)  # whole, be it the old or the new one
            write(out, replace=True)
        assert again(out).identity == whole.identity, f"killed at operation {at}"
        assert names(out) == names(tmp_path / "whole"), f"killed at operation {at}"


@pytest.mark.parametrize("lost", ["b.json", "journal"])
def test_a_folder_is_adopted_whole_or_not_at_all(lost, tmp_path):
    killed(tmp_path / "a", stop="training")
    journal = tmp_path / "a" / artifacts.JOURNAL
    if lost == "journal":
        journal.write_text(journal.read_text()[:-20])
    else:
        (tmp_path / "a" / "tokenizer" / lost).unlink()
    with pytest.raises(RuntimeError), artifacts.create(tmp_path / "a", kind="words", key="k") as w:
        assert w.done == {"words-0.txt", "words-1.txt"}
        raise RuntimeError
    assert write(tmp_path / "a").identity == write(tmp_path / "b").identity


def test_what_a_killed_run_left_half_is_removed(tmp_path):
    for trace in (".unfinished.json.part", ".journal.jsonl.part", ".lock"):
        (tmp_path / trace).mkdir()
        (tmp_path / trace / trace).write_text("{" if "json" in trace else "proc")
        assert write(tmp_path / trace).count == 2
    with artifacts.create(tmp_path / "a", kind="words") as writer:
        left = tmp_path / "a" / "..model.17.part"
        left.mkdir()
        (left / "model.safetensors").write_text("gigabytes")
        with writer.open("x") as file:
            file.write("x")
    assert names(tmp_path / "a") == {"x", "artifact.json", ".lock"}


# What a run has not written is neither overwritten nor removed.


def test_other_settings_and_foreign_folders_are_not_overwritten(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(UserError, match="holds a finished words made with other settings"):
        write(tmp_path / "a", "other")
    assert write(tmp_path / "a", "other", replace=True).file("words-0.txt").read_text() == "aother"
    killed(tmp_path / "b")
    with pytest.raises(UserError, match="holds an unfinished words made with other settings"):
        write(tmp_path / "b", "other")
    with pytest.raises(RuntimeError):
        with artifacts.create(tmp_path / "d", kind="words", key="refused"):
            raise RuntimeError
    assert write(tmp_path / "d", "other").count == 2, "nothing was written there"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("years")
    for replace in (False, True):
        with pytest.raises(UserError, match="not empty and not a folder of ours .it holds thesis"):
            write(tmp_path / "c", replace=replace)
    with pytest.raises(UserError, match="not a folder of ours"):
        artifacts.remove(tmp_path / "c")
    with pytest.raises(UserError, match="cannot be made"):
        write(tmp_path / "c" / "thesis.tex")
    assert (tmp_path / "c" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize(
    ("note", "state"),
    [
        ("notes.txt", "unfinished"),
        ("tokenizer/notes.txt", "clearing"),
        ("sub/notes.txt", "finished"),
    ],
)
def test_notes_in_a_folder_of_ours_survive(note, state, tmp_path):
    out = tmp_path / "a"
    if state == "unfinished":
        killed(out, stop="training")
    else:
        write(out)
    (out / note).parent.mkdir(exist_ok=True)
    if state == "clearing":
        with pytest.raises(Killed):
            at_operation(0, out, lambda: write(out, "new", replace=True), stop="words-1.txt")
    (out / note).write_text("thoughts")
    with pytest.raises(UserError, match="notes.txt was not written by a run.* move it elsewhere"):
        write(out, "new", replace=True)
    with pytest.raises(UserError, match="notes.txt was not written by a run"):
        artifacts.remove(out)
    assert (out / note).read_text() == "thoughts"
    (out / note).unlink()
    assert write(out, "new", replace=True).count == 2


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere" / "thesis.tex"
    file.parent.mkdir()
    file.write_text("years")
    return file


@pytest.mark.parametrize("state", ["unfinished", "finished", "deep", "itself", "lock"])
def test_nothing_is_written_or_removed_through_a_link(state, thesis, tmp_path):
    out = link = tmp_path / "a"
    if state == "finished":
        write(out)
    elif state != "itself":
        killed(out)
    if state == "lock":
        (out / ".lock").unlink()
        link, target = out / ".lock", thesis
    else:
        where = out / "tokenizer" if state == "deep" else out
        link, target = (out if state == "itself" else where / "link"), thesis.parent
        link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    for key in ("k", "other"):
        with pytest.raises(UserError, match="is a link to .*elsewhere.* remove the link"):
            write(out, key, replace=True)
    if state != "lock":
        with pytest.raises(UserError, match="is a link to"):
            artifacts.remove(out)
    assert thesis.read_text() == "years"
    link.unlink()
    assert write(out, "other", replace=True).count == 2


@pytest.mark.parametrize(
    ("name", "state"),
    [
        (".unfinished.json", "finished"),
        (".journal.jsonl", "unfinished"),
        ("artifact.json", "finished"),
        ("deep", "unfinished"),
    ],
)
def test_a_link_for_a_temporary_file_does_not_empty_a_file_elsewhere(name, state, thesis, tmp_path):
    out = tmp_path / "a"
    if state == "finished":
        write(out, "other")
    else:
        killed(out)
    if name == "deep":
        name = ".scratch/training/words-0.txt"
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    link = out / (name + artifacts.PART)
    link.symlink_to(thesis)
    assert write(out, replace=True).count == 2
    assert not os.path.lexists(link) and thesis.read_text() == "years"


def test_two_processes_cannot_write_one_folder(tmp_path):
    child = (
        "import sys\nfrom qac_jax import artifacts\n"
        "with artifacts.create(sys.argv[1], kind='words', key='k'):\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    with pytest.raises(UserError, match=rf"is being written by process {process.pid} on"):
        write(tmp_path / "a")
    process.communicate("\n")
    assert process.returncode == 0
    assert artifacts.load(tmp_path / "a").count == 0


# What is on the disk outlives a loss of power and is not cut off by a full disk.


@pytest.fixture
def log(monkeypatch) -> list[tuple[str, str]]:
    """What is written to the disk, and what files are moved to."""
    found: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        found.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_sync(descriptor)

    def replace(source: str, target: str) -> None:
        found.append(("move", str(target)))
        real_replace(source, target)

    monkeypatch.setenv(disk.VARIABLE, "1")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return found


def test_files_are_on_the_disk_before_they_are_relied_upon(tmp_path, log):
    out = tmp_path / "new" / "a"
    write(out)
    committed = log.index(("move", str(out / artifacts.COMMIT)))
    before = {path for what, path in log[:committed] if what == "sync"}
    wanted = {"words-0.txt.part", "words-1.txt.part", "artifact.json.part"}
    wanted |= {"tokenizer", "tokenizer/a.json", "tokenizer/b.json", ""}
    assert {str(out / name).rstrip("/") for name in wanted} <= before
    assert {str(tmp_path), str(tmp_path / "new")} <= before, "the names of new folders"
    assert ("sync", str(out)) in log[committed:]


def test_a_living_index_names_only_what_is_on_the_disk(tmp_path, log):
    """Vectors and the names of files reach it before the record that names them."""
    folder = tmp_path / "live"
    live = toy_live.live(folder, toy_live.records(4))
    log.clear()
    live.add(toy_live.records(2, 4))
    committed = log.index(("move", str(folder / artifacts.COMMIT)))
    vectors = log.index(("sync", str(folder / "index-000001" / "vectors.f32")))
    assert ("sync", str(folder)) in log[vectors:committed]
    assert live.snapshot.store.read("PRAGMA synchronous") == [(3,)]
    assert ("sync", str(folder)) in log[committed:]


def test_arrays_are_numpy_s_bytes_or_an_error(tmp_path: Path) -> None:
    """`numpy.save` ends well on a full disk, with a file that is a byte short."""
    for array in (np.ones((3, 5), np.int64).T, np.zeros((0, 4), "<f2")):
        arrays.save(tmp_path / "ours.npy", array)
        np.save(tmp_path / "theirs.npy", array)
        assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2191, before[1]))
    try:
        with pytest.raises(OSError):
            arrays.save(tmp_path / "a.npy", np.arange(516, dtype=np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
