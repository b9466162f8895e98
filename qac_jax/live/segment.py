"""A segment: passages that were added together, with all that searching them needs.

A folder of kind "segment", never changed once it is finished: vectors, ids, records, words,
metadata and, where it is large, ScaNN's files. Deletions are files of their own (`manifest.py`).
Counts of words are stored, not scores: BM25 scores depend on all passages of the index, of which a
segment knows only its own (`snapshot.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import Writer
from qac_jax.formats.identities import id_hashes
from qac_jax.formats.records import Records, write_records
from qac_jax.live import filters
from qac_jax.live.filters import Metadata
from qac_jax.retrieval import corpus
from qac_jax.retrieval.approximate import SCANN, Preset, Scann, preset
from qac_jax.retrieval.bm25 import VOCABULARY, Analyzer
from qac_jax.retrieval.corpus import Ids
from qac_jax.retrieval.vectors import shard_name


_ARRAYS = ("starts", "rows", "counts", "lengths")


@dataclasses.dataclass(frozen=True)
class Postings:
    """Word number w occurs `counts[i]` times in row `rows[i]`, for i in starts[w] … starts[w+1]."""

    numbers: dict[str, int]  # word -> its number
    starts: np.ndarray  # int64 [words + 1]
    rows: np.ndarray  # int32, ascending for each word
    counts: np.ndarray  # int32
    lengths: np.ndarray  # int32 [rows]: words of each passage

    @classmethod
    def of(cls, texts: Iterable[str], analyzer: Analyzer) -> Postings:
        """Counts the words of texts, in their order."""
        numbers: dict[str, int] = {}
        words, lengths = array("i"), array("i")
        for text in texts:
            found = analyzer.words(text)
            words.extend([numbers.setdefault(word, len(numbers)) for word in found])
            lengths.append(len(found))
        size = np.frombuffer(lengths, np.int32) if lengths else np.zeros(0, np.int32)
        named = np.frombuffer(words, np.int32) if words else np.zeros(0, np.int32)
        rows = np.repeat(np.arange(len(size), dtype=np.int64), size)
        keys, counts = np.unique(named * np.int64(max(len(size), 1)) + rows, return_counts=True)
        return cls._sorted(numbers, *np.divmod(keys, max(len(size), 1)), counts, size)

    @classmethod
    def merged(cls, parts: Sequence[Postings], kept: Sequence[np.ndarray]) -> Postings:
        """Those of several segments as one, of their kept rows (a mask for each)."""
        numbers: dict[str, int] = {}
        words, rows, counts, lengths, start = [], [], [], [], 0
        for part, mask in zip(parts, kept, strict=True):
            there = np.array([numbers.setdefault(w, len(numbers)) for w in part.numbers], np.int64)
            alive = mask[part.rows]
            each = np.repeat(np.arange(len(part.numbers)), np.diff(part.starts))
            words.append(there[each[alive]] if len(there) else np.zeros(0, np.int64))
            rows.append(start + (np.cumsum(mask) - 1)[part.rows[alive]])
            counts.append(part.counts[alive])
            lengths.append(part.lengths[mask])
            start += int(mask.sum())
        word, row = np.concatenate(words), np.concatenate(rows)
        order = np.lexsort((row, word))
        used = np.unique(word)
        named = list(numbers)
        return cls._sorted(
            {named[old]: new for new, old in enumerate(used.tolist())},
            np.searchsorted(used, word[order]),
            row[order],
            np.concatenate(counts)[order],
            np.concatenate(lengths),
        )

    @classmethod
    def _sorted(
        cls,
        numbers: dict[str, int],
        words: np.ndarray,
        rows: np.ndarray,
        counts: np.ndarray,
        lengths: np.ndarray,
    ) -> Postings:
        starts = np.searchsorted(words, np.arange(len(numbers) + 1)).astype(np.int64)
        return cls(numbers, starts, *(a.astype(np.int32) for a in (rows, counts, lengths)))

    def of_word(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """(rows, counts) of a word; empty where no passage has it."""
        number = self.numbers.get(word)
        if number is None:
            return self.rows[:0], self.counts[:0]
        place = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return self.rows[place], self.counts[place]

    def write(self, out: Writer) -> None:
        """Into a segment that is being written."""
        for name in _ARRAYS:
            out.write_array(f"word_{name}.npy", getattr(self, name))
        with out.open(VOCABULARY) as file:
            file.writelines(f"{word}\n" for word in self.numbers)

    @classmethod
    def read(cls, folder: Path) -> Postings:
        """Of a finished segment; its arrays are memory-mapped."""
        # Plain arrays: slicing numpy's memmap class is slow.
        found = (
            np.asarray(np.load(folder / f"word_{name}.npy", mmap_mode="r")) for name in _ARRAYS
        )
        words = (folder / VOCABULARY).read_text(encoding="utf-8").splitlines()
        return cls({word: number for number, word in enumerate(words)}, *found)


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
            out.write_array(name, array)
        write_records(out, rows.records())
        filters.write(out, rows.records())
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
            built: Any = preset(SCANN, rows.count)
            target = np.load(os.fspath(out.path / shard_name(0, 1)), mmap_mode="r")
            Scann.build(np.asarray(target), built, out.begin(_SCANN))
            out.adopt(_SCANN)
            out.info["preset"] = dataclasses.asdict(built)
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
        shape = Preset(**self._artifact.info["preset"])
        return Scann([self.folder / _SCANN], [self.rows], self._mapped.shape[1], [shape])

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
