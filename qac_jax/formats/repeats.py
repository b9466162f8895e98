"""Ids that occur twice in a corpus: a global step over what all workers return."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable

import numpy as np

from qac_jax.formats.documents import Document, content_hash, ids_of
from qac_jax.formats.identities import id_hash, repeated


Ids = tuple[np.ndarray, np.ndarray, np.ndarray]


class ShardIds:
    """The ids of one part's documents in twelve bytes each, and eight for what a document says:
    what a worker returns."""

    def __init__(self) -> None:
        self._hashes, self._owners, self._contents = array("Q"), array("I"), array("Q")

    def add(self, document: Document) -> None:
        for i in ids_of(document):
            self._hashes.append(id_hash(i))
            self._owners.append(len(self._contents))
        self._contents.append(content_hash(document))

    def arrays(self) -> Ids:
        """uint64 hashes, the number of the document each belongs to, hashes of what these say."""
        return (
            np.frombuffer(self._hashes, np.uint64),
            np.frombuffer(self._owners, np.uint32),
            np.frombuffer(self._contents, np.uint64),
        )


def repeated_documents(parts: Iterable[Ids]) -> dict[int, dict[int, bool]]:
    """A global step: part -> numbers of its documents with an id that was there before, and
    whether they are the same record as then.

    Give them to `read_shard(…, drop=…)`: it counts the same ones, and names file and line of the
    others, or skips and lists them.
    """
    every = list(parts)
    hashes = np.concatenate([h for h, _, _ in every]) if every else np.zeros(0, np.uint64)
    ends = list(itertools.accumulate(len(h) for h, _, _ in every))
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]

    def owner(position: int) -> tuple[int, int, int]:
        """(part, number of the document, hash of what it says) of an id."""
        part = int(np.searchsorted(ends, position, side="right"))
        begin = ends[part - 1] if part else 0
        number = int(every[part][1][position - begin])
        return part, number, int(every[part][2][number])

    by_part: dict[int, dict[int, bool]] = {}
    for position in repeated(hashes):
        part, number, says = owner(int(position))
        first = int(order[np.searchsorted(in_order, hashes[position], side="left")])
        same = owner(first)[2] == says
        known = by_part.setdefault(part, {})
        known[number] = known.get(number, True) and same
    return {part: dict(sorted(numbers.items())) for part, numbers in sorted(by_part.items())}
