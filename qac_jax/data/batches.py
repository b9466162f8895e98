"""Makes the batch of any step: reads records, makes examples, stacks arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.examples import Source
from qac_jax.data.featurizer import Featurizer
from qac_jax.data.randomness import ExampleRng
from qac_jax.data.sampler import Plan, Slots
from qac_jax.data.workers import Spec


Batch = dict[str, np.ndarray]
VALID = "valid"

# Records that are fetched and parsed together, for several small batches if necessary: fetching
# them one by one is ten times as slow.
_TOGETHER = 1024


class Batches:
    """This host's rows of batch number `step`. Is pickled for worker processes."""

    def __init__(
        self,
        sources: Sequence[Source],
        featurizers: Sequence[Featurizer],
        plan: Plan,
        *,
        seed: int,
        rows: tuple[int, int],
        with_valid: bool,
    ):
        self.sources, self.featurizers, self.plan, self.seed = sources, featurizers, plan, seed
        self.with_valid = with_valid
        self._first, self._last = rows
        self.rows = self._last - self._first
        # Steps whose records are fetched together; batches of one run come from one process.
        self.run = max(1, _TOGETHER // self.rows)
        self._fetched: tuple[int, Slots, Sequence[Mapping[str, Any]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fetched": None}

    @property
    def spec(self) -> Spec:
        """Shape and type of every array."""
        spec = self.featurizers[0].spec(self.rows)
        if self.with_valid:
            spec[VALID] = ((self.rows,), np.dtype(np.int32))
        return spec

    def __call__(self, step: int) -> Batch:
        number, place = divmod(step, self.run)
        slots, records = self._records(number)
        here = slice(place * self.rows, (place + 1) * self.rows)
        seek, seed = ExampleRng().seek, self.seed
        make = [featurizer.example for featurizer in self.featurizers]
        examples = [
            make[part](record, seek(seed, epoch, index))
            for part, epoch, index, record in zip(
                slots.part[here].tolist(),
                slots.epoch[here].tolist(),
                slots.example[here].tolist(),
                records[here],
                strict=True,
            )
        ]
        batch = self.featurizers[0].batch(examples)
        if self.with_valid:
            batch[VALID] = slots.valid[here].astype(np.int32)
        return batch

    def _records(self, number: int) -> tuple[Slots, Sequence[Mapping[str, Any]]]:
        """The slots of a run of steps and their records; the last run is cached."""
        fetched = self._fetched
        if fetched is None or fetched[0] != number:
            steps = range(number * self.run, (number + 1) * self.run)
            each = [self.plan.at(step).rows(self._first, self._last) for step in steps]
            slots = Slots(*(np.concatenate(column) for column in zip(*each, strict=True)))
            # One assignment: a prefetching thread may read while the main one replaces it.
            self._fetched = fetched = (number, slots, self._read(slots))
        return fetched[1:]

    def _read(self, slots: Slots) -> Sequence[Mapping[str, Any]]:
        if len(self.sources) == 1:
            return self.sources[0].read(slots.example)
        records: list[Mapping[str, Any]] = [{}] * len(slots.part)
        for part, source in enumerate(self.sources):
            rows = np.flatnonzero(slots.part == part)
            if rows.size:
                fetched = source.read(slots.example[rows])
                for row, record in zip(rows.tolist(), fetched, strict=True):
                    records[row] = record
        return records
