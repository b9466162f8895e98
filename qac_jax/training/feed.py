"""The interface of loaders that the trainer needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np


class Loader(Protocol):
    """An endless iterator over batches whose position can be saved and restored.

    A batch has this process's rows of the whole batch: part `index` of `count` equal parts, as
    `qac_jax.training.mesh.my_part` returns them.
    """

    @property
    def identity(self) -> str:
        """A hash of the data and of the settings that choose and order them."""

    @property
    def examples_per_epoch(self) -> int:
        """Examples of all processes in one pass over the data."""

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of every array that `next` returns."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]:
        """The position as JSON, to restore in another loader of the same data."""

    def restore(self, state: dict[str, Any]) -> None:
        """Moves to a saved position."""
