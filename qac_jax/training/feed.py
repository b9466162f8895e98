"""What the trainer needs of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np


class Loader(Protocol):
    """Batches without end, and the place among them.

    A batch holds this process's rows of the whole batch: part `index` of `count` equal parts, as
    `qac_jax.training.mesh.my_part` says.
    """

    @property
    def identity(self) -> str:
        """Of the data and of the settings that choose and order them."""

    @property
    def examples_per_epoch(self) -> int:
        """Examples of all processes in one pass over the data."""

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of every array that `next` gives."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]:
        """JSON that brings another loader of the same data to this place."""

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to the place of that state."""
