"""Which examples make which batch: plans, pure functions of (seed, step).

A plan gives any step without computing the steps before it, and every host computes the same global
batch and takes its own rows.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from qac_jax.data.randomness import permute
from qac_jax.errors import UserError


# Positions are permuted for several steps at once, because a call is slower than a position.
_AHEAD = 8192
# Random streams of one seed, which must differ: order, documents, within them, batches.
_DOCUMENTS, _WITHIN, _BATCHES = 2 << 60, 3 << 60, 4 << 60


class Slots(NamedTuple):
    """The rows of a batch: example number `example`, in epoch `epoch`."""

    epoch: np.ndarray
    example: np.ndarray

    def rows(self, start: int, stop: int) -> Slots:
        return Slots(*(column[start:stop] for column in self))


def joined(slots: Iterable[Slots]) -> Slots:
    return Slots(*map(np.concatenate, zip(*slots, strict=True)))


@dataclasses.dataclass(eq=False)
class Plan(abc.ABC):
    """All batches of a run."""

    batch_size: int
    examples_per_epoch: int
    seed: int

    @property
    def batches_per_epoch(self) -> int:
        return max(1, self.examples_per_epoch // self.batch_size)

    def steps(self, epochs: int) -> int:
        return max(1, epochs * self.examples_per_epoch // self.batch_size)

    def at(self, step: int) -> Slots:
        """The global batch of step `step`, counted from the beginning of the run."""
        together = max(1, _AHEAD // self.batch_size)
        row = step % together * self.batch_size
        return self._block(step // together, together).rows(row, row + self.batch_size)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a plan lives as long as its loader
    def _block(self, number: int, steps: int) -> Slots:
        size = steps * self.batch_size
        return self.slots(np.arange(number * size, (number + 1) * size))

    @abc.abstractmethod
    def slots(self, positions: np.ndarray) -> Slots:
        """The examples at these positions in the run, each independently of the others."""


@dataclasses.dataclass(eq=False)
class Straight(Plan):
    """`count` examples, shuffled anew each epoch."""

    count: int
    shuffle: bool

    def slots(self, positions: np.ndarray) -> Slots:
        epoch, position = np.divmod(positions, self.examples_per_epoch)
        index = permute(position, self.count, self.seed, epoch) if self.shuffle else position
        return Slots(epoch, index)


class Separate(Plan):
    """Batches in which no two examples come from one document.

    The examples of an epoch, document after document in random order, are dealt like cards onto
    one heap for each batch: no document has more cards than there are heaps, so no heap gets two
    of one document. The number of heaps m is the largest for which the examples suffice when every
    document gives at most m; so an epoch has the largest possible number of batches, and the
    examples left out are drawn anew each epoch. Memory: two numbers a document.
    """

    def __init__(self, documents: np.ndarray, batch_size: int, seed: int = 0):
        documents = np.asarray(documents)
        order = None  # examples sorted by document, where they are not already
        if documents.size and (documents[1:] < documents[:-1]).any():
            order = np.argsort(documents, kind="stable")
            documents = documents[order]
        starts = np.flatnonzero(np.r_[True, documents[1:] != documents[:-1]])
        sizes = np.diff(np.r_[starts, documents.size])
        batches = _most_batches(sizes, batch_size)
        if not batches:
            raise UserError(
                f"batch_size {batch_size} is larger than the number of documents ({len(sizes)}); "
                "make it smaller, or set separate_documents to False"
            )
        super().__init__(batch_size, batches * batch_size, seed)
        self._order, self._starts, self._sizes = order, starts, sizes

    def slots(self, positions: np.ndarray) -> Slots:
        steps, row = np.divmod(positions, self.batch_size)
        epoch, heap = np.divmod(steps, self.batches_per_epoch)
        example = np.zeros_like(epoch)
        for one in np.unique(epoch):
            here = epoch == one
            example[here] = self._deal(int(one), heap[here], row[here])
        return Slots(epoch, example)

    def _deal(self, epoch: int, numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The examples in these rows of these batches of an epoch."""
        heaps = self.batches_per_epoch
        order, ends = self._dealing_order(epoch)
        cards = permute(numbers, heaps, self.seed ^ _BATCHES, epoch) + heaps * rows
        place = np.searchsorted(ends, cards, side="right")
        document = order[place]
        offset = cards - (ends[place] - np.minimum(self._sizes[document], heaps))
        # A separate stream for each document, so that each is shuffled differently.
        stream = np.uint64(epoch) * np.uint64(len(self._sizes)) + document.astype(np.uint64)
        offset = permute(offset, self._sizes[document], self.seed ^ _WITHIN, stream)
        index = self._starts[document] + offset
        return index if self._order is None else self._order[index]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a plan lives as long as its loader
    def _dealing_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents in random order, and where the cards of each end."""
        count = len(self._sizes)
        order = permute(np.arange(count), count, self.seed ^ _DOCUMENTS, epoch)
        return order, np.cumsum(np.minimum(self._sizes[order], self.batches_per_epoch))


def _most_batches(sizes: np.ndarray, batch_size: int) -> int:
    """The largest number of batches for which the examples suffice."""

    def too_many(batches: int) -> bool:
        return bool(np.minimum(sizes, batches).sum() < batches * batch_size)

    return bisect.bisect(range(1, int(sizes.sum()) // batch_size + 1), False, key=too_many)


def make_plan(
    count: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    remainder: str = "drop",
    documents: np.ndarray | None = None,
) -> Plan:
    """The plan of `count` examples; with `documents`, batches separate documents.

    remainder: the examples of an epoch that do not fill a batch are left out ("drop"; others each
    epoch), or come with the first ones of the next epoch ("wrap").
    """
    if remainder not in ("drop", "wrap"):
        raise UserError(f"remainder {remainder!r} is not known; one of drop, wrap")
    if documents is not None:
        return Separate(documents, batch_size, seed)
    if count < batch_size:
        raise UserError(f"batch_size {batch_size} is larger than the number of examples ({count})")
    used = count - count % batch_size if remainder == "drop" else count
    return Straight(batch_size, used, seed, count, shuffle)
