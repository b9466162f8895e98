"""BM25 over segments: scores from the statistics of all passages that are not deleted.

They equal those of a fresh BM25 index of these passages in the same order, bit for bit: the
statistics are sums over segments, and each score is computed in bm25s's order and precision.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import numpy as np

from qac_jax.live.postings import Postings
from qac_jax.retrieval.bm25 import Analyzer, Scoring


# Words whose scores are kept between queries, by the number of their passages.
_KEPT = 1 << 23
# What a word costs that no passage has.
_ALONE = 256

Gains = tuple[np.ndarray, np.ndarray]  # rows of the index, their scores


class Words:
    """The words of several segments, one after the other."""

    def __init__(
        self,
        segments: Sequence[Postings],
        alive: Sequence[np.ndarray],
        analyzer: Analyzer,
        scoring: Scoring,
    ):
        self.analyzer, self._scoring = analyzer, scoring
        self._segments, self._alive = segments, alive
        self._starts = np.cumsum([0, *(len(mask) for mask in alive)])
        self.rows = int(self._starts[-1])
        self.count = sum(int(mask.sum()) for mask in alive)
        pairs = zip(segments, alive, strict=True)
        words = sum(int(part.lengths[mask].sum(dtype=np.int64)) for part, mask in pairs)
        self._mean = np.float64(words) / max(self.count, 1)
        self._known: dict[str, Gains] = {}
        self._size, self._lock = 0, threading.Lock()

    def scores(self, question: str) -> np.ndarray:
        """float32 [rows]: 0 where a passage has none of the words, or is deleted."""
        total = np.zeros(self.rows, np.float32)
        for word in self.analyzer.words(question) if self.rows else ():
            rows, gains = self._gains(word)
            total[rows] += gains
        return total

    def by_word(self, question: str, row: int) -> list[tuple[str, float]]:
        """The score of a row, word by word: (the question's word, what it gives)."""
        found: dict[str, float] = {}
        stems = self.analyzer.words(question) if self.rows else ()
        for word in stems:
            rows, gains = self._gains(word)
            here = np.flatnonzero(rows == row)
            if len(here):
                found[word] = found.get(word, 0.0) + float(gains[here[0]])
        return sorted(found.items(), key=lambda pair: -pair[1])

    def _gains(self, word: str) -> Gains:
        with self._lock:
            known = self._known.get(word)
        if known is None:
            known = self._computed(word)
            with self._lock:
                size = len(known[0]) + _ALONE
                if self._size + size > _KEPT:
                    self._known, self._size = {}, 0
                self._known[word] = known
                self._size += size
        return known

    def _computed(self, word: str) -> Gains:
        every = []
        for part, mask, start in zip(self._segments, self._alive, self._starts, strict=False):
            rows, counts = part.of_word(word)
            alive = mask[rows]
            mine = rows[alive]
            every.append((mine + start, counts[alive], part.lengths[mine]))
        rows, counts, lengths = (np.concatenate(arrays) for arrays in zip(*every, strict=True))
        if not len(rows):
            return rows.astype(np.int64), np.zeros(0, np.float32)
        rarity = np.float32(_RARITY[self._scoring.variant](len(rows), self.count))
        weights = self._weights(counts.astype(np.float32), lengths)
        return rows.astype(np.int64), (rarity * weights).astype(np.float32)

    def _weights(self, counts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Kamphuis et al. (ECIR 2020), table 1: the part of a word's count in a passage."""
        k1, b, mean = self._scoring.k1, self._scoring.b, self._mean
        if self._scoring.variant == "atire":
            return (counts * (k1 + 1)) / (counts + k1 * (1 - b + b * lengths / mean))
        return counts / (k1 * ((1 - b) + b * lengths / mean) + counts)


def _lucene(having: int, count: int) -> float:
    return math.log(1 + (count - having + 0.5) / (having + 0.5))


def _robertson(having: int, count: int) -> float:
    return math.log(max((count - having + 0.5) / (having + 0.5), 1))


def _atire(having: int, count: int) -> float:
    return math.log(count / having)


# Kamphuis et al., table 1: the inverse document frequency of a word.
_RARITY: dict[str, Callable[[int, int], float]] = {
    "lucene": _lucene,
    "robertson": _robertson,
    "atire": _atire,
}
