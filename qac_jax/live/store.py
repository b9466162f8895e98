"""The files of a living index, and its manifest: the `artifact.json` that each change replaces.

A folder holds one generation: a SQLite database of passages, words and metadata, and a file of
vectors, one a row. Rows are only appended and never numbered
again, and a deletion notes the version that made it, so a version is (rows, number): readers see
rows below the first that no version up to the second deleted, whatever is written meanwhile. A
change reaches the database, then the manifest names it: killed in between, the index is the old
one, and the next change discards what was left. A compaction writes the next generation.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import qac_jax
from qac_jax import artifacts, fields
from qac_jax.artifacts import Artifact, disk
from qac_jax.errors import UserError
from qac_jax.live import filters
from qac_jax.retrieval.bm25 import Analyzer, Scoring
from qac_jax.retrieval.corpus import passage_text
from qac_jax.retrieval.fusion import Fusion


KIND = "live"
SCHEMA = 2
Record = dict[str, Any]

_DATABASE, _VECTORS = "passages.sqlite", "vectors.f32"
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


@dataclasses.dataclass(frozen=True)
class LiveSettings:
    """The settings that a living index keeps for all of its life."""

    encoder: dict[str, Any]  # as an artefact of vectors stores it
    dimension: int
    cosine: bool  # whether the scores of vectors are cosines
    fusion: Fusion = Fusion()
    scoring: Scoring = Scoring()
    stemmer: str = "english"
    stop_words: bool = True

    def analyzer(self) -> Analyzer:
        return Analyzer(self.stemmer, self.stop_words)

    @classmethod
    def of(cls, artifact: Artifact) -> LiveSettings:
        known = {field.name: artifact.info[field.name] for field in dataclasses.fields(cls)}
        parts = {"fusion": Fusion(**known["fusion"]), "scoring": Scoring(**known["scoring"])}
        return cls(**{**known, **parts})


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of the index."""

    number: int = 1
    generation: int = 1
    rows: int = 0  # ever written in this generation
    count: int = 0  # of them not deleted
    added: int = 0  # passages ever added: names those without an id
    content: str = ""  # a hash of all changes

    @classmethod
    def of(cls, artifact: Artifact) -> Version:
        if artifact.schema != SCHEMA:
            raise UserError(
                f"{artifact.path} has an earlier format of living indexes; copy it: qac index "
                f"NEW_FOLDER --add {artifact.path}"
            )
        known = dict(artifact.info["manifest"])
        known.pop("parts", None)  # ScaNN's, of earlier versions
        return cls(**known)

    def after(self, *changes: Any, **values: Any) -> Version:
        """The next version; `changes` say what was added or deleted."""
        content = fields.digest([self.content, *changes]) if changes else self.content
        return dataclasses.replace(self, number=self.number + 1, content=content, **values)


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
    contents = {inside.name: f"{version.content} {version.generation} []"}
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
        if path != inside:
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if is_folder else os.unlink(path)


def _counted(texts: Iterable[str], analyzer: Analyzer, start: int) -> list[tuple[str, int, bytes]]:
    """(word, bucket, pairs of a row and how often it has the word) of texts, as rows from start."""
    found: dict[tuple[str, int], array[int]] = {}
    for row, text in enumerate(texts, start):
        words = analyzer.words(text)
        for word, count in (*collections.Counter(words).items(), (LENGTH, len(words))):
            found.setdefault((word, row // _BUCKET), array("i")).extend((row, count))
    return [(*key, pairs.tobytes()) for key, pairs in sorted(found.items())]


class Store:
    """One generation. Searches and a change may use it at once, from several threads."""

    def __init__(self, folder: Path, generation: int, width: int):
        self.folder, self.generation = folder_of(folder, generation), generation
        self._width, self._lock = width, threading.Lock()
        address = f"file:{quote(str((self.folder / _DATABASE).absolute()))}?mode=rw"
        self._database = sqlite3.connect(
            address, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        durable = os.environ.get(disk.VARIABLE, "1") != "0"
        self._database.execute(f"PRAGMA synchronous = {'EXTRA' if durable else 'OFF'}")
        # Others read until the commit itself.
        self._database.execute("PRAGMA cache_spill = OFF")

    @classmethod
    def create(cls, folder: Path, generation: int, width: int) -> Store:
        place = folder_of(folder, generation)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name in (_DATABASE, _VECTORS):
            (place / name).touch()
        made = cls(folder, generation, width)
        made._database.executescript(_TABLES)
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
        return np.asarray(np.memmap(path, np.float32, "r", shape=(rows, self._width)))

    @contextlib.contextmanager
    def changing(self, version: Version) -> Iterator[None]:
        """A transaction that first discards what no version has named."""
        execute = self._database.execute
        try:
            execute("BEGIN IMMEDIATE")
            execute("UPDATE passages SET deleted = NULL WHERE deleted > ?", [version.number])
            execute("UPDATE passages SET deleted = 0 WHERE row >= ?", [version.rows])
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
        self, records: Sequence[Record], vectors: np.ndarray, analyzer: Analyzer
    ) -> tuple[int, str]:
        """Adds passages within a change; returns how many rows there are then, and a hash."""
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
            _counted(map(passage_text, records), analyzer, start),
        )
        digest = hashlib.sha256("\n".join(lines).encode())
        digest.update(vectors.tobytes())
        return rows.stop, digest.hexdigest()
