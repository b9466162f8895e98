"""A living index that comes from a stranger, or was changed behind our back: nothing else is
reached, run or fetched, and `inspect --verify` finds what was changed."""

import json
import os
import sqlite3
import struct
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import toy_live as toy
from toy_process import Qac

from qac_jax import artifacts
from qac_jax.artifacts.reading import sealed
from qac_jax.errors import UserError
from qac_jax.live import convert
from qac_jax.live.index import LiveIndex
from qac_jax.live.verify import verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine passages of three changes, one of them deleted."""
    live = toy.live(tmp_path / "live", toy.records(4))
    live.add(toy.records(5, 4))
    live.delete(["d2"])
    verify(artifacts.load(live.folder))
    return live.folder


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    file = tmp_path / "elsewhere" / "letter.txt"
    file.parent.mkdir()
    file.write_text("dear mother")
    return file


def change(folder: Path) -> LiveIndex:
    live = LiveIndex(folder, encoder=toy.stub())
    live.add(toy.records(2, 50))
    live.compact()
    return live


def sql(folder: Path, *statements: str) -> None:
    database = sqlite3.connect(folder / "index-000001" / "passages.sqlite")
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


def manifest(folder: Path, name: str = "manifest", **changes: object) -> None:
    record = json.loads((folder / "artifact.json").read_text())
    record["info"][name] |= changes
    (folder / "artifact.json").write_text(json.dumps(sealed(record)))


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "UPDATE passages SET record = replace(record, 'n5', 'n6') WHERE row = 5",
        "UPDATE passages SET record = '[[' WHERE row = 5",
        "UPDATE passages SET id = 'd77' WHERE row = 5",
        "UPDATE passages SET deleted = 2 WHERE row = 5",
        "UPDATE passages SET deleted = NULL",
        "UPDATE passages SET deleted = iif(row = 3, 3, NULL)",
        "DELETE FROM passages WHERE row = 8",
        "UPDATE words SET counts = zeroblob(8) WHERE word >= 'w'",
        "UPDATE words SET counts = x'010203'",
        "UPDATE fields SET value = 9.5 WHERE row = 5 AND kind = 'number'",
        "UPDATE batches SET stop = 3 WHERE start = 0",
        "UPDATE batches SET stop = 1 << 50",
        "DELETE FROM batches",
    ],
)
def test_what_was_changed_is_found(statement: str, folder: Path, qac: Qac) -> None:
    """A bit of a vector, and what SQL may change."""
    sql(folder, *filter(None, [statement]))
    if not statement:
        file = folder / "index-000001" / "vectors.f32"
        raw = bytearray(file.read_bytes())
        raw[5 * 4 * toy.WIDTH] ^= 1
        file.write_bytes(raw)
    assert f"{folder} is damaged" in qac.refused("inspect", folder, "--verify")


def test_what_was_not_changed_is_whole_after_every_kind_of_change(folder: Path) -> None:
    """Also with what a change that was killed has left."""
    live = LiveIndex(folder, encoder=toy.stub())
    base = live.snapshot
    with base.store.changing(base.state):  # no manifest names it
        vectors = np.zeros((3, toy.WIDTH), np.float32)
        how = base.settings.analyzer(), base.state.sums
        base.store.append(toy.records(3, 90), vectors, *how)
    verify(artifacts.load(folder))
    for act in (
        lambda: live.add(toy.records(3, 5), replace=True),
        lambda: live.delete(["d1"]),
        lambda: live.compact(),
        lambda: live.add([{"_id": "é", "text": "x", "n": 10**400, "deep": {"a": [1, True, "1"]}}]),
    ):
        act()
        verify(artifacts.load(folder))


def test_an_index_of_an_earlier_version_has_no_hashes_until_it_is_copied(folder: Path) -> None:
    sql(folder, "DROP TABLE batches")
    manifest(folder, content="abc", sums="", gone="")
    live = LiveIndex(folder, encoder=toy.stub())
    for passages in ([], toy.records(1, 70)):
        live.add(passages)
        with pytest.raises(UserError, match="an earlier version has written it without hashes"):
            verify(artifacts.load(folder))
    live.compact()
    verify(artifacts.load(folder))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON passages BEGIN DELETE FROM passages; END",
        "CREATE TRIGGER t BEFORE UPDATE ON passages BEGIN SELECT load_extension('/x'); END",
        "CREATE VIEW v AS SELECT readfile('/etc/passwd')",
        "ALTER TABLE passages ADD COLUMN g AS (hex(zeroblob(1000000000)))",
        "CREATE INDEX i ON passages (record)",
        "DROP TABLE words",
    ],
)
def test_other_tables_than_ours_are_refused(statement: str, folder: Path) -> None:
    sql(folder, statement)
    before = (folder / "index-000001" / "passages.sqlite").read_bytes()
    with pytest.raises(UserError, match="has not the tables of an index"):
        change(folder)
    assert (folder / "index-000001" / "passages.sqlite").read_bytes() == before


def test_a_journal_that_names_another_file_does_not_delete_it(folder: Path, letter: Path) -> None:
    """SQLite deletes the file that a journal names as that of several databases."""
    database = folder / "index-000001" / "passages.sqlite"
    page, magic = 4096, bytes.fromhex("d9d505f920a163d7")
    name = os.fspath(letter).encode()
    header = magic + struct.pack(">5I", 0, 0, database.stat().st_size // page, 512, page)
    ending = struct.pack(">I", 0x40000000 // page + 1) + name
    ending += struct.pack(">2I", len(name), sum(name)) + magic
    journal = Path(f"{database}-journal")
    journal.write_bytes(header.ljust(512, b"\0") + ending)
    with pytest.raises(UserError, match="was not written by an index; remove it"):
        LiveIndex(folder)
    assert letter.read_text() == "dear mother"
    journal.unlink()
    assert len(LiveIndex(folder)) == 8


@pytest.mark.parametrize("name", ["", "vectors.f32", "passages.sqlite", "passages.sqlite-journal"])
def test_nothing_is_written_through_a_link(name: str, folder: Path, letter: Path) -> None:
    place = folder / "index-000001" / name
    if os.path.lexists(place):
        place.rename(letter.parent / "moved")
    place.symlink_to(letter.parent / "moved" if name != "passages.sqlite-journal" else letter)
    before = {p: p.read_bytes() for p in letter.parent.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="is a link to .*remove the link"):
        change(folder)
    assert {p: p.read_bytes() for p in letter.parent.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", ["passages.sqlite-journal", "passages.sqlite-wal"])
def test_what_is_no_file_of_an_index_is_not_opened(name: str, folder: Path) -> None:
    os.mkfifo(folder / "index-000001" / name)
    with pytest.raises(UserError, match="was not written by an index"):
        change(folder)


def test_notes_in_a_living_index_survive(folder: Path, letter: Path) -> None:
    """In every folder whose name is like that of a generation."""
    notes = [folder / "notes.txt", folder / "index-notes" / "a.txt"]
    notes += [folder / f"index-00000{n}" / "notes.txt" for n in (1, 9)]
    for note in notes:
        note.parent.mkdir(exist_ok=True)
        note.write_text("thoughts")
    (folder / "index-000008").symlink_to(letter.parent)
    (folder / ("artifact.json" + artifacts.PART)).symlink_to(letter)
    live = change(folder)
    assert len(live) == 10 and letter.read_text() == "dear mother"
    assert live.snapshot.store.read("PRAGMA trusted_schema") == [(0,)]
    assert [note.read_text() for note in notes] == ["thoughts"] * 4
    (folder / "index-000003").mkdir()
    (folder / "index-000003" / "notes.txt").write_text("thoughts")
    LiveIndex(folder, encoder=toy.stub()).delete(["d50"])
    with pytest.raises(UserError, match="index-000003 was not written by an index; move it"):
        LiveIndex(folder, encoder=toy.stub()).compact()
    assert letter.read_text() == "dear mother"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("manifest", {"generation": "../live"}),
        ("manifest", {"generation": 0}),
        ("manifest", {"rows": 10**18}),
        ("manifest", {"rows": -1}),
        ("manifest", {"rows": "9"}),
        ("manifest", {"more": 1}),
        ("fusion", {"more": 1}),
        ("fusion", {"weight": "x"}),
    ],
)
def test_nonsense_in_the_manifest_is_one_sentence(name, changes, folder: Path) -> None:
    manifest(folder, name, **changes)
    with pytest.raises(UserError):
        LiveIndex(folder)


@pytest.mark.parametrize("name", ["..", "../elsewhere", "/etc", "link"])
def test_segments_of_the_earlier_format_lie_in_the_index(name, folder, letter) -> None:
    old = folder.parent / "old"
    old.mkdir()
    (old / "link").symlink_to(letter.parent)
    record = json.loads((folder / "artifact.json").read_text()) | {"schema": 1, "files": {}}
    segment = {"name": name, "rows": 1, "deleted": 0, "tombstones": ""}
    record["info"]["manifest"] = {"version": 4, "segments": [segment]}
    artifacts.rewrite(old, record)
    with pytest.raises(UserError, match="does not name a file inside|is a link to"):
        convert.add(LiveIndex(folder, encoder=toy.stub()), artifacts.load(old))


def test_the_hub_is_not_asked_for_a_model_that_only_the_index_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(name: str, **how: object) -> str:
        asked.append((name, how.get("local_files_only", False)))
        raise huggingface_hub.errors.LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    record = json.loads((folder / "artifact.json").read_text())
    record["info"]["encoder"]["path"] = "stranger/model@v1"
    (folder / "artifact.json").write_text(json.dumps(sealed(record)))
    with pytest.raises(UserError, match="--encoder stranger/model@v1 to fetch it from the Hub"):
        LiveIndex(folder).search(["bees"])
    assert asked == [("stranger/model", True)]
    with pytest.raises(UserError, match="the Hub's cache"):
        LiveIndex(folder, encoder="stranger/model@v1").search(["bees"])
    assert asked[-1] == ("stranger/model", False)
