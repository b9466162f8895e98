"""The trainer's batches through seqio: the loader's examples, made by a task's `get_dataset`.

It is there to show that the seqio tasks are what we train on, and for whoever adds preprocessors to
them. The loader's own feeds are faster, and continue a run without reading what came before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data import tasks
from qac_jax.data.featurizer import Featurizer
from qac_jax.data.sampler import Straight
from qac_jax.data.workers import Batch


if TYPE_CHECKING:
    from qac_jax.data.loader import Loader


class SeqioFeed:
    """Batches start, start + 1, … before stop (None: endless) of a loader's examples."""

    def __init__(self, loader: Loader, start: int, stop: int | None):
        self._featurizer = loader.featurizers[0]
        self._size, self._rows = loader.batch_size, loader.here
        self._left = None if stop is None else max(stop - start, 0)
        plan = loader.plan
        name = tasks.register(
            loader.parts[0] if len(loader.parts) == 1 else loader.parts,
            crop=self._featurizer.form.crop,
            name=f"{tasks.PREFIX}feed_{loader.identity[:16]}",
        )
        dataset = tasks.seqio.get_mixture_or_task(name).get_dataset(
            self._featurizer.lengths,
            split="train",
            shuffle=loader.shuffle,
            seed=loader.seed,
            num_epochs=None,
        )
        # Where an epoch's last examples fill no batch, they are read and left out.
        count, used = 1, 1
        if isinstance(plan, Straight) and plan.remainder == "drop":
            count, used = plan.count, plan.examples_per_epoch
        epoch, place = divmod(start * self._size, used)
        self._first = epoch * count + place
        numbered = zip(
            itertools.count(self._first),
            dataset.skip(self._first).as_numpy_iterator(),
            strict=False,
        )
        self._examples: Iterator[Any] = (
            example for number, example in numbered if number % count < used
        )

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._left == 0:
            raise StopIteration
        self._left = None if self._left is None else self._left - 1
        batch = list(itertools.islice(self._examples, self._size))
        if len(batch) < self._size:
            raise StopIteration
        first, last = self._rows
        return self._featurizer.batch([_unpadded(e, self._featurizer) for e in batch[first:last]])

    def close(self) -> None:
        """Lets go of the pipeline, which ends its threads."""
        self._examples = iter(())


def _unpadded(example: Mapping[str, np.ndarray], featurizer: Featurizer) -> dict[str, Any]:
    """An example as the kind's function makes it: lists of texts without their padding."""
    result: dict[str, Any] = {}
    for name, feature in featurizer.features.items():
        value: Any = example[name]
        group = tuple(int(axis) for axis in feature.axes[:-1])
        if feature.padded and group:
            sizes = example[f"{feature.like or name}_length"].ravel()
            rows = value.reshape(-1, value.shape[-1])
            value = [row[:size] for row, size in zip(rows, sizes, strict=True)]
        result[name] = value
    return result
