"""Which examples make which batch: plans, pure functions of (seed, step).

A plan gives any step without computing the steps before it. So the state of a loader is a step
number, every host computes the same global batch and takes its own rows, and worker processes need
no communication.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from qac_jax.data.randomness import permute
from qac_jax.errors import UserError


REMAINDERS = ("drop", "wrap", "pad")

# Positions are permuted for several steps at once, because a call is slower than a position.
_AHEAD = 8192
# Random streams of one seed, which must differ: order, mixture, documents, batches.
_MIXING, _DOCUMENTS, _WITHIN, _BATCHES = 1 << 60, 2 << 60, 3 << 60, 4 << 60


class Slots(NamedTuple):
    """The rows of a batch: example number `example` of source `part`, in epoch `epoch` of it."""

    part: np.ndarray
    epoch: np.ndarray
    example: np.ndarray
    valid: np.ndarray

    def rows(self, start: int, stop: int) -> Slots:
        return Slots(*(column[start:stop] for column in self))


class Plan(Protocol):
    """All batches of a run."""

    @property
    def batches_per_epoch(self) -> int: ...

    @property
    def examples_per_epoch(self) -> int: ...

    def steps(self, epochs: int) -> int:
        """The number of batches in `epochs` epochs."""

    def at(self, step: int) -> Slots:
        """The global batch of step `step`, counted from the beginning of the run."""


@dataclasses.dataclass(frozen=True)
class Straight:
    """One source, shuffled anew each epoch.

    `remainder`: "drop" leaves out the examples of an epoch that do not fill a batch (different
    ones each epoch), "wrap" lets batches cross the end of an epoch, "pad" fills the last batch
    with invalid rows (evaluation).
    """

    count: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    remainder: str = "drop"

    @property
    def batches_per_epoch(self) -> int:
        if self.remainder == "drop":
            return self.count // self.batch_size
        return -(-self.count // self.batch_size)

    @property
    def examples_per_epoch(self) -> int:
        if self.remainder == "drop":
            return self.batches_per_epoch * self.batch_size
        return self.count

    def steps(self, epochs: int) -> int:
        if self.remainder == "wrap":
            return -(-epochs * self.count // self.batch_size)
        return epochs * self.batches_per_epoch

    def at(self, step: int) -> Slots:
        size = self.batch_size
        together = max(1, _AHEAD // size)
        block = self._block(step // together, together)
        row = step % together * size
        return block.rows(row, row + size)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a plan lives as long as its loader
    def _block(self, number: int, steps: int) -> Slots:
        size = self.batch_size
        slots = np.arange(number * steps * size, (number + 1) * steps * size)
        if self.remainder == "wrap":
            epoch, position = np.divmod(slots, self.count)
        else:
            epoch, position = np.divmod(slots, self.batches_per_epoch * size)
        valid = position < self.count
        # Padding rows repeat the first example: the mean of an empty text is not defined.
        index = _shuffled(np.where(valid, position, 0), self.count, self.seed, epoch, self.shuffle)
        return Slots(np.zeros_like(slots), epoch, index, valid)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Several sources in fixed proportions; each has its own epochs.

    Every `period` examples have the same number of each source, in random order; so proportions
    are exact to 1 / period, and the position in each source follows from the step alone.
    """

    counts: tuple[int, ...]
    weights: tuple[float, ...]
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    period: int = 1024

    @functools.cached_property
    def quotas(self) -> np.ndarray:
        """The number of examples of each source in a period (largest remainder method)."""
        shares = np.array(self.weights) / sum(self.weights) * self.period
        quotas = np.floor(shares).astype(np.int64)
        order = np.argsort(quotas - shares, kind="stable")
        quotas[order[: self.period - quotas.sum()]] += 1
        return quotas

    @property
    def batches_per_epoch(self) -> int:
        return max(1, self.examples_per_epoch // self.batch_size)

    @property
    def examples_per_epoch(self) -> int:
        """The number of examples of all sources together."""
        return sum(self.counts)

    def steps(self, epochs: int) -> int:
        return max(1, epochs * self.examples_per_epoch // self.batch_size)

    def at(self, step: int) -> Slots:
        start, stop = step * self.batch_size, (step + 1) * self.batch_size
        first = start // self.period
        blocks = [self._block(b) for b in range(first, -(-stop // self.period))]
        columns = (np.concatenate(column) for column in zip(*blocks, strict=True))
        offset = start - first * self.period
        return Slots(*columns).rows(offset, offset + self.batch_size)

    @functools.lru_cache(maxsize=8)  # noqa: B019 - a plan lives as long as its loader
    def _block(self, number: int) -> Slots:
        part = self.schedule(number)
        epoch, example = np.zeros_like(part), np.zeros_like(part)
        for p, (count, quota) in enumerate(zip(self.counts, self.quotas, strict=True)):
            places = np.flatnonzero(part == p)
            serial = number * quota + np.arange(len(places))
            epoch[places], position = np.divmod(serial, count)
            example[places] = _shuffled(position, count, self.seed, epoch[places], self.shuffle)
        return Slots(part, epoch, example, np.ones(len(part), bool))

    def schedule(self, number: int) -> np.ndarray:
        """The sources of a period, in order."""
        labels = np.repeat(np.arange(len(self.quotas)), self.quotas)
        return labels[permute(np.arange(self.period), self.period, self.seed ^ _MIXING, number)]


class Separate:
    """Batches in which no two examples come from one document.

    The examples of an epoch, document after document in random order, are dealt like cards onto
    one heap for each batch: no document has more cards than there are heaps, so no heap gets two
    of one document. The number of heaps m is the largest for which the examples suffice when every
    document gives at most m; so an epoch has the largest possible number of batches, and the
    examples left out are drawn anew each epoch. Memory: two numbers a document.
    """

    def __init__(self, documents: np.ndarray, batch_size: int, seed: int = 0):
        self.batch_size, self.seed = batch_size, seed
        documents = np.asarray(documents)
        self._order = None  # examples sorted by document, where they are not already
        if documents.size and (documents[1:] < documents[:-1]).any():
            self._order = np.argsort(documents, kind="stable")
            documents = documents[self._order]
        self._starts = np.flatnonzero(np.r_[True, documents[1:] != documents[:-1]])
        self._sizes = np.diff(np.r_[self._starts, documents.size])
        self.batches_per_epoch = self._most_batches()
        if not self.batches_per_epoch:
            raise UserError(
                f"batch_size {batch_size} is larger than the number of documents "
                f"({len(self._sizes)}), so documents cannot be kept apart; make it smaller, or "
                f"set separate_documents to False"
            )
        self._layout: tuple[int, np.ndarray, np.ndarray] | None = None

    @property
    def examples_per_epoch(self) -> int:
        return self.batches_per_epoch * self.batch_size

    def steps(self, epochs: int) -> int:
        return epochs * self.batches_per_epoch

    def at(self, step: int) -> Slots:
        together = max(1, _AHEAD // self.batch_size)
        row = step % together * self.batch_size
        return self._block(step // together, together).rows(row, row + self.batch_size)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a plan lives as long as its loader
    def _block(self, number: int, steps: int) -> Slots:
        epochs, heaps = np.divmod(
            np.arange(number * steps, (number + 1) * steps), self.batches_per_epoch
        )
        pieces = [self._deal(int(epoch), heaps[epochs == epoch]) for epoch in np.unique(epochs)]
        example, epoch = np.concatenate(pieces), np.repeat(epochs, self.batch_size)
        return Slots(np.zeros_like(epoch), epoch, example, np.ones(len(epoch), bool))

    def _deal(self, epoch: int, numbers: np.ndarray) -> np.ndarray:
        """The examples of these batches of an epoch, one batch after the other."""
        heaps = self.batches_per_epoch
        order, ends = self._dealing_order(epoch)
        heap = permute(numbers, heaps, self.seed ^ _BATCHES, epoch)
        cards = (heap[:, None] + heaps * np.arange(self.batch_size)).reshape(-1)
        place = np.searchsorted(ends, cards, side="right")
        document = order[place]
        offset = cards - (ends[place] - np.minimum(self._sizes[document], heaps))
        # A separate stream for each document, so that each is shuffled differently.
        stream = np.uint64(epoch) * np.uint64(len(self._sizes)) + document.astype(np.uint64)
        offset = permute(offset, self._sizes[document], self.seed ^ _WITHIN, stream)
        index = self._starts[document] + offset
        return index if self._order is None else self._order[index]

    def _dealing_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents in random order, and where the cards of each end."""
        layout = self._layout
        if layout is None or layout[0] != epoch:
            count = len(self._sizes)
            order = permute(np.arange(count), count, self.seed ^ _DOCUMENTS, epoch)
            cards = np.minimum(self._sizes[order], self.batches_per_epoch)
            # One assignment: prefetching threads may read while another replaces it.
            self._layout = layout = (epoch, order, np.cumsum(cards))
        return layout[1:]

    def _most_batches(self) -> int:
        low, high = 0, int(self._sizes.sum()) // self.batch_size
        while low < high:  # there are enough examples for `low` batches, and at most for `high`
            middle = (low + high + 1) // 2
            if np.minimum(self._sizes, middle).sum() >= middle * self.batch_size:
                low = middle
            else:
                high = middle - 1
        return low


def make_plan(
    counts: Sequence[int],
    batch_size: int,
    *,
    weights: Sequence[float] = (1.0,),
    seed: int = 0,
    shuffle: bool = True,
    remainder: str = "drop",
    documents: np.ndarray | None = None,
) -> Plan:
    """The plan for one or several sources; with `documents`, batches separate documents."""
    if remainder not in REMAINDERS:
        raise UserError(f"remainder {remainder!r} is not known; one of {', '.join(REMAINDERS)}")
    if len(counts) > 1:
        if documents is not None or remainder == "pad":
            raise UserError(
                "separate_documents and remainder 'pad' work with one source; tokenize the "
                "sources together, or leave them out"
            )
        mixture = Mixed(tuple(counts), tuple(weights), batch_size, seed, shuffle)
        if not mixture.quotas.all():
            raise UserError(
                f"weights {tuple(weights)}: the smallest share is below 1/{mixture.period}, so "
                f"its source would never be drawn; raise it or leave the source out"
            )
        return mixture
    if documents is not None:
        return Separate(documents, batch_size, seed)
    plan = Straight(counts[0], batch_size, seed, shuffle, remainder)
    if not plan.batches_per_epoch:
        raise UserError(
            f"batch_size {batch_size} is larger than the number of examples ({counts[0]}); make "
            "it smaller, or give more examples"
        )
    return plan


def _shuffled(
    position: np.ndarray, count: int, seed: int, epoch: np.ndarray, shuffle: bool
) -> np.ndarray:
    return permute(position, count, seed, epoch) if shuffle else position
