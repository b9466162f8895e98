"""Queries to vectors in few shapes, all of them compiled beforehand.

XLA compiles a program for every shape, which takes about a second: a server must not do so while
others wait. So the queries of a batch are padded to one of a few lengths and numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from qac_jax.inference.buckets import Batch, padded
from qac_jax.inference.encoder import Encoder


_LENGTHS = (16, 24, 32, 64)
# The first of these before the server answers, the others while it does.
_FIRST = 3


class QueryEncoder:
    """An encoder whose queries are read in few shapes."""

    def __init__(self, encoder: Encoder, most: int):
        self._encoder = encoder
        devices = encoder.runner.mesh.size
        self._sizes = [devices]
        while self._sizes[-1] < most:
            self._sizes.append(2 * self._sizes[-1])
        limit = encoder.limits["query"]
        self._lengths = sorted({min(length, limit) for length in _LENGTHS})

    def encode(self, texts: Sequence[str], side: str = "passage") -> np.ndarray:
        """As of the encoder."""
        if side != "query":
            return self._encoder.encode(texts, side)
        rows = self._encoder.tokenize(texts, side)
        longest = max(map(len, rows), default=0)
        if not rows or longest > self._lengths[-1]:
            return self._encoder.encode_tokens(rows, side)
        length = next(length for length in self._lengths if length >= longest)
        vectors = []
        for start in range(0, len(rows), self._sizes[-1]):
            part = rows[start : start + self._sizes[-1]]
            size = next(size for size in self._sizes if size >= len(part))
            batch = Batch(np.arange(len(part)), size, length)
            ids, lengths = padded(part, batch, self._encoder.tokenizer.pad_id)
            vectors.append(np.asarray(self._encoder.apply(ids, lengths, side))[: len(part)])
        return np.concatenate(vectors)

    def warm(self) -> None:
        """Compiles the shapes of short queries, and in the background those of longer ones."""
        self._compile(self._lengths[:_FIRST])
        rest = self._lengths[_FIRST:]
        threading.Thread(target=self._compile, args=(rest,), daemon=True).start()

    def _compile(self, lengths: Sequence[int]) -> None:
        for length in lengths:
            for size in self._sizes:
                ids = np.full((size, length), self._encoder.tokenizer.pad_id, np.int32)
                np.asarray(self._encoder.apply(ids, np.ones(size, np.int32), "query"))
