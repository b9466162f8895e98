"""The words of a segment's passages: for each word the rows that contain it, and how often.

Counts are stored, not scores: BM25 scores depend on all passages of the index, of which a segment
knows only its own (`words.py`).
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from qac_jax.artifacts import Writer, arrays
from qac_jax.retrieval.bm25 import VOCABULARY, Analyzer


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
            with out.temporary(f"word_{name}.npy") as path:
                arrays.save(path, getattr(self, name))
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
