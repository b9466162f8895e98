"""Ids that occur twice in a corpus: a global step over what all workers return."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable

import numpy as np

from qac_jax.formats.documents import Document, ids_of
from qac_jax.formats.identities import id_hash, repeated


class ShardIds:
    """The ids of one part's documents in twelve bytes each: what a worker returns."""

    def __init__(self) -> None:
        self._hashes, self._owners, self._count = array("Q"), array("I"), 0

    def add(self, document: Document) -> None:
        for i in ids_of(document):
            self._hashes.append(id_hash(i))
            self._owners.append(self._count)
        self._count += 1

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """uint64 hashes, and the number of the document each belongs to."""
        return np.frombuffer(self._hashes, np.uint64), np.frombuffer(self._owners, np.uint32)


def repeated_documents(
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
) -> dict[int, frozenset[int]]:
    """A global step: part -> numbers of its documents with an id that was there before.

    Give them to `read_shard(…, drop=…)`: it names file and line, or skips and lists them.
    """
    every = list(parts)
    hashes = np.concatenate([h for h, _ in every]) if every else np.zeros(0, np.uint64)
    ends = list(itertools.accumulate(len(h) for h, _ in every))
    by_part: dict[int, set[int]] = {}
    for position in repeated(hashes):
        part = int(np.searchsorted(ends, position, side="right"))
        begin = ends[part - 1] if part else 0
        by_part.setdefault(part, set()).add(int(every[part][1][position - begin]))
    return {part: frozenset(numbers) for part, numbers in sorted(by_part.items())}
