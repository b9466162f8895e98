"""A segment: passages that were added together, with all that searching them needs.

A folder of kind "segment", never changed once it is finished: vectors, ids, records, words,
metadata and, where it is large, ScaNN's files. Deletions are files of their own (`manifest.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import arrays
from qac_jax.formats.identities import id_hashes
from qac_jax.formats.records import Records, write_records
from qac_jax.live import metadata
from qac_jax.live.metadata import Metadata
from qac_jax.live.postings import Postings
from qac_jax.retrieval import corpus
from qac_jax.retrieval.approximate import Preset, Scann
from qac_jax.retrieval.corpus import Ids
from qac_jax.retrieval.vectors import shard_name


KIND = "segment"
HASHES, HASH_ROWS = "id_hashes.npy", "id_rows.npy"
_SCANN = "scann"
# The number of vectors from which a segment is searched by ScaNN.
LARGE = 20_000
# Exact segments below this size are read into memory once: mapped, each would take its own pages.
_SMALL_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a segment is made of: records and, block by block, their vectors."""

    records: Callable[[], Iterator[Mapping[str, Any]]]
    count: int
    width: int
    blocks: Callable[[], Iterator[np.ndarray]]
    words: Postings

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], vectors: np.ndarray, words: Postings) -> Rows:
        """Of what is in memory."""
        return cls(
            lambda: iter(records), len(records), vectors.shape[1], lambda: iter([vectors]), words
        )


def write(folder: Path, rows: Rows, *, large: int = LARGE) -> None:
    """Writes a segment; nobody sees it before the manifest names it."""
    with artifacts.create(folder, kind=KIND, replace=True) as out:
        corpus.write_ids(out, (record["_id"] for record in rows.records()))
        hashes = id_hashes(record["_id"] for record in rows.records())
        order = np.argsort(hashes, kind="stable")
        for name, array in ((HASHES, hashes[order]), (HASH_ROWS, order.astype(np.int32))):
            with out.temporary(name) as path:
                arrays.save(path, array)
        write_records(out, rows.records())
        metadata.write(out, rows.records())
        rows.words.write(out)
        with out.temporary(shard_name(0, 1)) as path:
            # Not memory-mapped: a full disk would end the process.
            with open(os.fspath(path), "wb") as file:
                shape = (rows.count, rows.width)
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                start = 0
                for block in rows.blocks():
                    file.write(np.ascontiguousarray(block, np.float32).tobytes())
                    start += len(block)
            assert start == rows.count == out.count
        if rows.count >= large:
            preset = Scann.preset(rows.count)
            target = np.load(os.fspath(out.path / shard_name(0, 1)), mmap_mode="r")
            Scann.build(np.asarray(target), preset, out.path / _SCANN)
            out.adopt(_SCANN)
            out.info["preset"] = dataclasses.asdict(preset)
    (folder / artifacts.LOCK).unlink(missing_ok=True)


class Segment:
    """A finished segment. Files are opened at once or at first use, and stay open."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = folder.name
        self._artifact = artifacts.load(folder, KIND)
        self.rows = self._artifact.count
        self.ids = Ids(self._artifact)
        self.records = Records(self._artifact)
        _ = self.records[0]  # opens its file
        self._hashes = np.load(folder / HASHES, mmap_mode="r")
        self._hash_rows = np.load(folder / HASH_ROWS, mmap_mode="r")
        self._mapped = np.load(folder / shard_name(0, 1), mmap_mode="r")

    def __len__(self) -> int:
        return self.rows

    def open(self) -> None:
        """Opens everything, so that a search works after the folder has been removed."""
        _ = self.vectors, self.words, self.metadata, self.scann

    def rows_of(self, names: Sequence[str]) -> np.ndarray:
        """int64: where each id is, or -1."""
        values = id_hashes(names)
        places = np.searchsorted(self._hashes, values, side="left")
        rows = np.full(len(names), -1, np.int64)
        inside = places < self.rows
        there = inside & (self._hashes[np.where(inside, places, 0)] == values)
        for number in np.flatnonzero(there).tolist():
            place = int(places[number])
            while place < self.rows and self._hashes[place] == values[number]:
                # Ids of one hash stand together.
                if self.ids[row := int(self._hash_rows[place])] == names[number]:
                    rows[number] = row
                    break
                place += 1
        return rows

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """[rows, dimensions]: in memory where they are few, else memory-mapped."""
        few = self._mapped.nbytes < _SMALL_BYTES and not self.large
        return np.array(self._mapped) if few else np.asarray(self._mapped)

    @functools.cached_property
    def words(self) -> Postings:
        return Postings.read(self.folder)

    @functools.cached_property
    def metadata(self) -> Metadata:
        return Metadata(self.folder, self.rows)

    @property
    def large(self) -> bool:
        return "preset" in self._artifact.info

    @functools.cached_property
    def scann(self) -> Scann | None:
        """The searcher of a large segment."""
        if not self.large:
            return None
        preset = Preset(**self._artifact.info["preset"])
        return Scann([self.folder / _SCANN], [self.rows], self._mapped.shape[1], [preset])

    def kept(self, mask: np.ndarray) -> Iterator[dict[str, Any]]:
        """The records of some rows, in order."""
        return (record for record, keep in zip(self.records, mask, strict=True) if keep)

    @property
    def identity(self) -> str:
        return self._artifact.identity

    @property
    def files(self) -> dict[str, Any]:
        """Its files as the index lists them, seen from the index's folder."""
        whole = {f"{self.name}/{name}": entry for name, entry in self._artifact.files.items()}
        commit = self.folder / artifacts.COMMIT
        whole[f"{self.name}/{artifacts.COMMIT}"] = {"size": commit.stat().st_size, "sha256": ""}
        return whole
