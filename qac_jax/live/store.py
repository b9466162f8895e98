"""The files of a living index, and its manifest: the `artifact.json` that each change replaces.

A folder holds one generation: a SQLite database of passages, words and metadata, and a file of
vectors, one a row. Rows are only appended and never numbered
again, and a deletion notes the version that made it, so a version is (rows, number): readers see
rows below the first that no version up to the second deleted, whatever is written meanwhile. A
change reaches the database, then the manifest names it: killed in between, the index is the old
one, and the next change discards what was left. A compaction writes the next generation.

Every change adds a batch of rows with a hash of their texts and vectors and of the batches before
it; the manifest has the last one, and a hash of the rows that are deleted (`verify.py`).

The database may be a stranger's: it is used if its tables are ours and it has no more than these,
and if what SQLite would undo first is of this file alone.
"""

import collections
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import sqlite3
import sys
import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np

import qac_jax
from qac_jax import artifacts, fields
from qac_jax.artifacts import Artifact, disk
from qac_jax.errors import UserError
from qac_jax.live import filters
from qac_jax.retrieval.bm25 import PRESETS, QUESTIONS, Analyzer, Scoring
from qac_jax.retrieval.corpus import passage_text
from qac_jax.retrieval.fusion import Fusion


KIND = "live"
SCHEMA = 2
Record = dict[str, Any]

_DATABASE, _VECTORS = "passages.sqlite", "vectors.f32"
_JOURNAL = f"{_DATABASE}-journal"
_FILES = (_DATABASE, _VECTORS, _JOURNAL)
# The end of a journal that names another file, which SQLite deletes when it has undone the change.
_OF_SEVERAL = bytes.fromhex("d9d505f920a163d7")
# Seconds that a process waits for another one's commit.
_PATIENCE = 60
# Rows of a word whose counts are stored together, as pairs (row, count).
_BUCKET = 1 << 14
# Stands for all words of a passage: its count is the passage's length.
LENGTH = " "
_TABLES = """
CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT, record TEXT, deleted INTEGER);
CREATE INDEX ids ON passages (id);
CREATE INDEX deletions ON passages (deleted) WHERE deleted IS NOT NULL;
CREATE TABLE words (word TEXT, bucket INTEGER, counts BLOB, PRIMARY KEY (word, bucket))
    WITHOUT ROWID;
CREATE TABLE fields (field TEXT, kind TEXT, value, row INTEGER,
    PRIMARY KEY (field, kind, value, row)) WITHOUT ROWID;
"""
# Missing from indexes of earlier versions, until they are changed.
_BATCHES = "CREATE TABLE batches (start INTEGER PRIMARY KEY, stop INTEGER, sha256 TEXT)"
_SCHEMA = "SELECT type, name, sql FROM sqlite_master"


@dataclasses.dataclass(frozen=True)
class LiveSettings:
    """The settings that a living index keeps for all of its life."""

    encoder: dict[str, Any]  # as an artefact of vectors stores it
    dimension: int = dataclasses.field(metadata={"bounds": {"at least": 1}})
    cosine: bool  # whether the scores of vectors are cosines
    fusion: Fusion = Fusion()
    scoring: Scoring = PRESETS[QUESTIONS]
    stemmer: str = "english"
    stop_words: str | bool = "snowball"

    def analyzer(self) -> Analyzer:
        return Analyzer(self.stemmer, self.stop_words)

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        with _readable(artifact):
            known = {field.name: artifact.info[field.name] for field in dataclasses.fields(cls)}
            parts = {"fusion": Fusion(**known["fusion"]), "scoring": Scoring(**known["scoring"])}
            fields.check(settings := cls(**{**known, **parts}))
            return settings


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of the index."""

    number: int = 1
    generation: int = fields.option(1, at_least=1)
    rows: int = fields.option(0, "ever written in this generation", at_least=0)
    count: int = fields.option(0, "of them not deleted", at_least=0)
    added: int = 0  # passages ever added: names those without an id
    content: str = ""  # of earlier versions: a hash of all changes
    sums: str = ""  # the hash of the last batch
    gone: str = ""  # a hash of which rows are deleted

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        if artifact.schema != SCHEMA:
            raise UserError(
                f"{artifact.path} has an earlier format of living indexes; copy it: qac index "
                f"NEW_FOLDER --add {artifact.path}"
            )
        with _readable(artifact):
            known = dict(artifact.info["manifest"])
            known.pop("parts", None)  # ScaNN's, of earlier versions
            fields.check(version := cls(**known))
            return version

    def after(self, **values: Any) -> Self:
        return dataclasses.replace(self, number=self.number + 1, **values)


@contextlib.contextmanager
def _readable(artifact: Artifact) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the manifest of {artifact.path} cannot be read ({type(error).__name__}: {error}); "
            "if it is damaged, make the index again"
        ) from error


def folder_of(folder: Path, generation: int) -> Path:
    return folder / f"index-{generation:06d}"


def commit(folder: Path, version: Version, settings: LiveSettings) -> None:
    """Makes a version the index: everything it names must be on the disk."""
    inside = folder_of(folder, version.generation)
    files: dict[str, Any] = {}
    for name in (_DATABASE, _VECTORS):
        path = inside / name
        files[f"{inside.name}/{name}"] = {"size": path.stat().st_size, "sha256": "", "grows": True}
    info = {**dataclasses.asdict(settings), "manifest": dataclasses.asdict(version), "texts": []}
    content = f"{version.content} {version.sums} {version.gone}"
    contents = {inside.name: f"{content} {version.generation} []"}
    disk.folders(folder, files)
    record: dict[str, Any] = {"format": artifacts.FORMAT, "kind": KIND, "schema": SCHEMA}
    record |= {"stage": "", "key": "", "fields": {}, "inputs": {}, "seed": None}
    record |= {"info": info, "contents": contents, "files": files, "count": version.count}
    record["code"] = qac_jax.__version__
    record["identity"] = artifacts.identity_of(KIND, SCHEMA, files, contents)
    artifacts.rewrite(folder, record)


def sweep(folder: Path, version: Version) -> None:
    """Removes earlier generations, and one that was not finished.

    Who has an earlier version open keeps it: files that are open stay readable.
    """
    inside = folder_of(folder, version.generation)
    for path in folder.glob("index-*"):
        if path != inside and re.fullmatch(r"index-\d{6,}", path.name):
            _discard(path)


def _discard(inside: Path) -> None:
    """Removes a generation; a link stays, and what no index has written."""
    if inside.is_dir() and not inside.is_symlink():
        for name in _FILES:
            (inside / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            inside.rmdir()


def batch_sum(before: str, lines: Iterable[str], vectors: np.ndarray) -> str:
    """The hash of a batch of passages, as JSON, and of the batches before it."""
    digest = hashlib.sha256(before.encode())
    for line in lines:
        digest.update(f"{line}\n".encode())
    digest.update(vectors.tobytes())
    return digest.hexdigest()


def counted(texts: Iterable[str], analyzer: Analyzer, start: int) -> list[tuple[str, int, bytes]]:
    """(word, bucket, pairs of a row and how often it has the word) of texts, as rows from start."""
    found: dict[tuple[str, int], array[int]] = {}
    for row, text in enumerate(texts, start):
        words = analyzer.words(text)
        for word, count in (*collections.Counter(words).items(), (LENGTH, len(words))):
            found.setdefault((word, row // _BUCKET), array("i")).extend((row, count))
    return [(*key, pairs.tobytes()) for key, pairs in sorted(found.items())]


def _schema(rows: Iterable[tuple[str, str, str | None]]) -> set[tuple[str, str, str]]:
    return {(kind, name, " ".join((sql or "").split())) for kind, name, sql in rows}


class Store:
    """One generation. Searches and a change may use it at once, from several threads."""

    def __init__(self, folder: Path, generation: int, width: int, *, new: bool = False):
        self.folder, self.generation = folder_of(folder, generation), generation
        self._width, self._lock = width, threading.Lock()
        self._refuse_others()
        address = f"file:{quote(str((self.folder / _DATABASE).absolute()))}?mode=rw"
        self._database = sqlite3.connect(
            address, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, self._database.close)  # Python 3.13 warns of open ones
        durable = os.environ.get(disk.VARIABLE, "1") != "0"
        if sys.version_info >= (3, 12):
            self._database.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        self.read("PRAGMA trusted_schema = OFF")
        self.read(f"PRAGMA synchronous = {'EXTRA' if durable else 'OFF'}")
        self.read("PRAGMA cache_spill = OFF")  # others read until the commit itself
        if not new:
            self._refuse_schema()

    def _refuse_others(self) -> None:
        """Raises where SQLite or a change would reach another file than ours."""
        artifacts.refuse_link(self.folder)
        for name in (*_FILES, f"{_DATABASE}-wal"):
            artifacts.refuse_link(path := self.folder / name)
            if not os.path.lexists(path):
                continue
            strange = not path.is_file() or name.endswith("-wal")
            if name == _JOURNAL and not strange:
                with path.open("rb") as file:
                    file.seek(-min(len(_OF_SEVERAL), path.stat().st_size), os.SEEK_END)
                    strange = file.read() == _OF_SEVERAL
            if strange:
                raise UserError(
                    f"{path} was not written by an index; remove it, or make the index again"
                )

    def _refuse_schema(self) -> None:
        """Raises where the tables are not ours: others may compute something when they are read."""
        with contextlib.closing(sqlite3.connect(":memory:")) as ours:
            ours.executescript(_TABLES + _BATCHES)
            expected = _schema(ours.execute(_SCHEMA))
        strange = _schema(self.read(_SCHEMA)) ^ expected
        if strange - _schema([("table", "batches", _BATCHES)]):
            listed = ", ".join(sorted(f"{kind} {name}" for kind, name, _ in strange))
            raise UserError(
                f"{self.folder} has not the tables of an index ({listed}); make the index again"
            )

    @classmethod
    def create(cls, folder: Path, generation: int, width: int) -> Self:
        place = folder_of(folder, generation)
        _discard(place)
        try:
            place.mkdir()
        except FileExistsError:
            raise UserError(f"{place} was not written by an index; move it elsewhere") from None
        for name in (_DATABASE, _VECTORS):
            (place / name).touch()
        made = cls(folder, generation, width, new=True)
        made._database.executescript(_TABLES + _BATCHES)
        return made

    def read(self, query: str, *values: Any) -> list[Any]:
        """All rows of the answer."""
        try:
            with self._lock:  # nothing is undone in the middle of an answer
                return self._database.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.folder} cannot be read ({error}); if it is damaged, make the index again"
            ) from error

    def vectors(self, rows: int) -> np.ndarray:
        """float32: the vectors of the first rows, memory-mapped."""
        if not rows:
            return np.zeros((0, self._width), np.float32)
        path = self.folder / _VECTORS
        if path.stat().st_size < rows * 4 * self._width:
            raise UserError(f"{path} is damaged: it has less than {rows} rows; make it again")
        return np.asarray(np.memmap(path, np.float32, "r", shape=(rows, self._width)))

    @contextlib.contextmanager
    def changing(self, version: Version) -> Iterator[None]:
        """A transaction that first discards what no version has named."""
        execute = self._database.execute
        try:
            execute("BEGIN IMMEDIATE")
            execute("UPDATE passages SET deleted = NULL WHERE deleted > ?", [version.number])
            execute("UPDATE passages SET deleted = 0 WHERE row >= ?", [version.rows])
            execute(_BATCHES.replace("TABLE", "TABLE IF NOT EXISTS"))
            execute("DELETE FROM batches WHERE start >= ?", [version.rows])
            yield
            execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:
                with self._lock:
                    self._database.rollback()
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.folder) from error
            raise

    def delete(self, rows: Sequence[int], number: int) -> None:
        """Marks rows as deleted by a version; within a change."""
        marks = ((number, row) for row in rows)
        self._database.executemany("UPDATE passages SET deleted = ? WHERE row = ?", marks)

    def append(
        self, records: Sequence[Record], vectors: np.ndarray, analyzer: Analyzer, sums: str
    ) -> tuple[int, str]:
        """Adds passages within a change, after a batch with the hash `sums`; returns how many rows
        there are then, and the hash of this one."""
        (start,) = self.read("SELECT coalesce(max(row) + 1, 0) FROM passages")[0]
        vectors = np.ascontiguousarray(vectors, "<f4")
        path = self.folder / _VECTORS
        with open(path, "r+b") as file:
            file.truncate(start * 4 * self._width)
            file.seek(0, os.SEEK_END)
            file.write(vectors.tobytes())
        disk.file(path)
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        names = [record["_id"] for record in records]
        rows = range(start, start + len(records))
        values = [
            (field, *filters.stored(value), row)
            for row, record in zip(rows, records, strict=True)
            for field, value in filters.values(record)
        ]
        insert = self._database.executemany
        insert("INSERT INTO passages VALUES (?, ?, ?, NULL)", zip(rows, names, lines, strict=True))
        insert("INSERT OR IGNORE INTO fields VALUES (?, ?, ?, ?)", sorted(values))
        insert(
            "INSERT INTO words VALUES (?, ?, ?) ON CONFLICT (word, bucket) "
            "DO UPDATE SET counts = CAST(counts || excluded.counts AS BLOB)",
            counted(map(passage_text, records), analyzer, start),
        )
        sums = batch_sum(sums, lines, vectors)
        execute = self._database.execute
        execute("INSERT INTO batches VALUES (?, ?, ?)", [start, rows.stop, sums])
        return rows.stop, sums
