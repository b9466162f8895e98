"""The manifest of a living index: its `artifact.json`, replaced as a whole by each change.

It names the segments and, of each, the file of its deleted rows. A change writes new files, then
the manifest: killed before that, it leaves the old index and files that the next change removes.

Segments grow as a log-structured merge tree does: eight of about one size become one, so that n
additions of one passage leave some log n segments and rewrite each passage log n times. They do not
grow without end: building ScaNN's part of a segment takes more than three times the memory of its
vectors, so that a large index is built and compacted one segment of bounded size after the other.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qac_jax
from qac_jax import artifacts, fields
from qac_jax.artifacts import Artifact, arrays, disk
from qac_jax.live.segment import LARGE, Postings, Rows, Segment
from qac_jax.retrieval.bm25 import Analyzer, Scoring
from qac_jax.retrieval.fusion import Fusion


KIND = "live"
SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class LiveSettings:
    """What a living index keeps for all of its life."""

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
    def of(cls, known: dict[str, Any]) -> LiveSettings:
        parts = {"fusion": Fusion(**known["fusion"]), "scoring": Scoring(**known["scoring"])}
        return cls(**{**known, **parts})


@dataclasses.dataclass(frozen=True)
class Listed:
    """A segment of one version: its deleted rows are in `tombstones`."""

    name: str
    rows: int
    deleted: int = 0
    tombstones: str = ""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One version of the index."""

    version: int
    segments: tuple[Listed, ...]
    added: int  # passages ever added: names those without an id
    changes: int  # folders and files ever written: names the next one

    @property
    def count(self) -> int:
        return sum(entry.rows - entry.deleted for entry in self.segments)

    @classmethod
    def of(cls, artifact: Artifact) -> Manifest:
        known = artifact.info["manifest"]
        listed = tuple(Listed(**entry) for entry in known["segments"])
        return cls(known["version"], listed, known["added"], known["changes"])


def commit(
    folder: Path, manifest: Manifest, opened: dict[str, Segment], settings: LiveSettings
) -> None:
    """Makes a version the index: everything it names must be on the disk."""
    files: dict[str, Any] = {}
    for entry in manifest.segments:
        files |= opened[entry.name].files
        if entry.tombstones:
            size = (folder / entry.tombstones).stat().st_size
            files[entry.tombstones] = {"size": size, "sha256": ""}
    known = dataclasses.asdict(manifest)
    info = {**dataclasses.asdict(settings), "manifest": known}
    described = info.pop("encoder")
    contents = {entry.name: opened[entry.name].identity for entry in manifest.segments}
    for entry in manifest.segments:
        if entry.tombstones:
            contents[entry.tombstones] = fields.digest(np.load(folder / entry.tombstones).tolist())
    disk.file(folder)  # the names of segments and of their deletions, before what names them
    artifacts.rewrite(
        folder,
        {
            "format": artifacts.FORMAT,
            "kind": KIND,
            "schema": SCHEMA,
            "stage": "",
            "key": "",
            "fields": {},
            "inputs": {},
            "seed": None,
            "code": qac_jax.__version__,
            "count": manifest.count,
            "identity": artifacts.identity_of(KIND, SCHEMA, files, contents),
            "info": {"encoder": described, "texts": [], **info},
            "contents": contents,
            "files": files,
        },
    )


def settings_of(artifact: Artifact) -> LiveSettings:
    names = [field.name for field in dataclasses.fields(LiveSettings)]
    return LiveSettings.of({name: artifact.info[name] for name in names})


def tombstones_name(name: str, number: int) -> str:
    return f"{name}.deleted-{number:06d}.npy"


def write_tombstones(path: Path, alive: np.ndarray) -> None:
    arrays.save(path, np.flatnonzero(~alive).astype(np.int32))
    disk.file(path)


def alive(folder: Path, entry: Listed) -> np.ndarray:
    """bool [rows]: which rows of a segment are not deleted."""
    mask = np.ones(entry.rows, bool)
    if entry.tombstones:
        mask[np.load(folder / entry.tombstones)] = False
    return mask


def sweep(folder: Path, manifest: Manifest) -> None:
    """Removes the files of earlier versions and of changes that were not finished.

    Who has an earlier version open keeps it: files that are open stay readable.
    """
    named = {entry.name for entry in manifest.segments}
    named |= {entry.tombstones for entry in manifest.segments}
    for path in folder.glob("segment-*"):
        if path.name not in named:
            is_folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if is_folder else os.unlink(path)


# Rows that a merged segment has at most.
MOST = 1 << 17
_FANOUT = 8
# A large segment is merged when this share of it is deleted.
_MANY_DELETED = 0.2
_BLOCK = 1 << 14


def to_merge(entries: Sequence[Listed]) -> list[range]:
    """The last segments, if enough of them are of one size; the order of rows is kept."""
    size = _FANOUT
    while size <= LARGE:
        length = of_this_size = 0
        while length < len(entries) and (rows := entries[-1 - length].rows) < size:
            of_this_size += rows >= size // _FANOUT
            length += 1
        if of_this_size >= _FANOUT:
            return [range(len(entries) - length, len(entries))]
        size *= _FANOUT
    return []


def to_compact(entries: Sequence[Listed], *, full: bool = False) -> list[range]:
    """Neighbours that a compaction merges: together no more than a segment holds."""
    found: list[range] = []
    start = rows = 0

    def end(number: int) -> None:
        run = range(start, number)
        changes = len(run) > 1 or any(entries[i].deleted for i in run)
        if changes or (full and rows > MOST):
            found.append(run)

    for number, entry in enumerate(entries):
        few = entry.deleted < _MANY_DELETED * entry.rows
        if not full and entry.rows >= LARGE and few:  # it stays
            end(number)
            start, rows = number + 1, 0
            continue
        alive = entry.rows - entry.deleted
        if rows and rows + alive > MOST:
            end(number)
            start, rows = number, 0
        rows += alive
    end(len(entries))
    return found


def merged(parts: Sequence[Segment], alive: Sequence[np.ndarray]) -> Iterator[Rows]:
    """The rows of several segments that are not deleted, in their order: one segment, or where they
    are more than it holds several of about equal size."""
    sizes = [int(mask.sum()) for mask in alive]
    count = -(-sum(sizes) // MOST)
    ends = np.linspace(0, sum(sizes), count + 1).astype(np.int64)
    for start, stop in itertools.pairwise(ends.tolist()):
        chosen: list[tuple[Segment, np.ndarray]] = []
        before = 0
        for part, mask, size in zip(parts, alive, sizes, strict=True):
            first, last = max(start - before, 0), min(stop - before, size)
            if first < last:
                rows = np.flatnonzero(mask)[first:last]
                mine = np.zeros(len(mask), bool)
                mine[rows] = True
                chosen.append((part, mine))
            before += size
        yield _together(chosen)


def _together(pairs: Sequence[tuple[Segment, np.ndarray]]) -> Rows:
    def records() -> Iterator[dict[str, Any]]:
        for part, mask in pairs:
            yield from part.kept(mask)

    def blocks() -> Iterator[np.ndarray]:
        for part, mask in pairs:
            rows = np.flatnonzero(mask)
            for start in range(0, len(rows), _BLOCK):
                yield part.vectors[rows[start : start + _BLOCK]]

    parts, masks = zip(*pairs, strict=True)
    return Rows(
        records,
        sum(int(mask.sum()) for mask in masks),
        parts[0].vectors.shape[1],
        blocks,
        Postings.merged([part.words for part in parts], masks),
    )
