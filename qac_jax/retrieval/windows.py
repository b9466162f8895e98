"""The best window of a passage: a long passage answers a question with a few of its words.

One vector says what a passage is about on average; the maximum over parts of it finds what it says
in passing (MaxP; Dai and Callan, SIGIR 2019). The parts are windows of tokens, whose vectors come
from the passage's own forward pass (`models/pooling.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qac_jax.retrieval.vectors import Vectors


# Queries whose candidates' windows are in memory at a time: some 200 passages each.
_TOGETHER = 16


class Windows:
    """The windows of an index's passages, in files; only what is asked for is in memory."""

    def __init__(self, files: Sequence[Sequence[str]]):
        self._vectors = Vectors([vectors for vectors, _ in files])
        counts = np.concatenate([np.load(counts) for _, counts in files])
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def best(self, queries: np.ndarray, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The score of the best window of each query's rows; every passage has one."""
        found: list[np.ndarray] = []
        for start in range(0, len(queries), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            found += self._best(queries[some], rows[some])
        return found

    def _best(self, queries: np.ndarray, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        every = np.unique(np.concatenate([np.arange(0), *rows]))
        starts, counts = self._starts[every], np.diff(self._starts)[every]
        firsts = np.cumsum(counts) - counts
        places = np.repeat(starts - firsts, counts) + np.arange(counts.sum())
        vectors = self._vectors.take(places).astype(np.float32)
        found = []
        for query, wanted in zip(queries, rows, strict=True):
            mine = np.searchsorted(every, wanted)
            chosen = np.repeat(firsts[mine] - np.cumsum(counts[mine]) + counts[mine], counts[mine])
            scores = vectors[chosen + np.arange(len(chosen))] @ query
            found.append(np.maximum.reduceat(scores, np.cumsum(counts[mine]) - counts[mine]))
        return found
