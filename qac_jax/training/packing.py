"""Room for texts without padding (models/packing.py): chosen for each batch, a program a choice.

The rows of a compiled step have a fixed size. It is chosen from the batch alone, so a run is a
function of its settings and its data as before, resumed or not: the share of the padded tokens
that the fullest row needs, rounded up to one of a few levels. The more texts a row holds, the
less the sums of their lengths differ, and the finer the levels. A program is compiled when a batch
first needs it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from qac_jax.errors import UserError
from qac_jax.objectives.objective import Objective
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


# Room for a share of the padded tokens for each length that texts are padded to.
Room = tuple[tuple[int, float], ...]

_FINEST = 64


@dataclasses.dataclass
class Steps:
    """The compiled step for each batch: one for all, or with `pack` one for each room."""

    engine: Engine
    compile: Callable[[Engine], Any]
    pack: bool = False

    def __post_init__(self) -> None:
        if self.pack:
            check(self.engine.objective)
        self._programs: dict[Room, Any] = {}
        if not self.pack:
            self._programs[()] = self.compile(self.engine)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Any:
        """The program for this host's rows of a batch."""
        found = room(self.engine, batch) if self.pack else ()
        if found not in self._programs:
            self._programs[found] = self.compile(packed(self.engine, found))
        return self._programs[found]


def check(objective: Objective) -> None:
    """Raises UserError for an objective that cannot be computed without padding."""
    if not objective.packs:
        raise UserError(
            f"--pack cannot be used with the objective {type(objective).__name__}, whose texts are "
            "not those of the examples or are read in full; leave it out"
        )


def packed(engine: Engine, room: Room) -> Engine:
    """The engine whose model has this room for its texts."""
    return dataclasses.replace(engine, objective=engine.objective.with_packed(room))


def room(engine: Engine, batch: Mapping[str, np.ndarray]) -> Room:
    """The room that a batch needs, the same on every host."""
    hosts = jax.process_count()
    parts = math.prod(engine.mesh.shape[axis] for axis in meshes.BATCH_AXES)
    count = engine.pieces(hosts * next(iter(batch.values())).shape[0])
    shares = shares_of(batch, count, max(1, parts // hosts))
    if hosts > 1:
        values = np.array([share for _, share in shares], np.float32)
        most = np.max(multihost_utils.process_allgather(values), axis=0).tolist()
        shares = tuple((length, share) for (length, _), share in zip(shares, most, strict=True))
    return tuple((length, share) for length, share in shares if share < 1)


def shares_of(batch: Mapping[str, np.ndarray], count: int, parts: int) -> Room:
    """The share that each length needs where a batch is computed in `count` strided pieces, each
    cut into `parts` rows; 1 where that is all of it."""
    mean: dict[int, float] = {}  # tokens a text of the fullest row
    level: dict[int, int] = {}
    for name, ids in batch.items():
        if (sizes := batch.get(f"{name}_length")) is None:
            continue
        pieces = np.swapaxes(sizes.reshape(len(sizes) // count, count, -1), 0, 1)
        rows = pieces.reshape(count * parts, -1)
        length, texts = ids.shape[-1], rows.shape[1]
        mean[length] = max(mean.get(length, 0.0), float(rows.sum(axis=1).max() / texts))
        level[length] = min(level.get(length, _FINEST), levels(texts))
    # An objective may pad short texts further: where there is room for its own texts of a length,
    # there is room for those of shorter ones too.
    return tuple(
        (
            length,
            min(1.0, math.ceil(max(mean[n] for n in mean if n <= length) / length * steps) / steps),
        )
        for length, steps in sorted(level.items())
    )


def levels(texts: int) -> int:
    """How finely the room of a row of this many texts is chosen."""
    return 16 if texts < 128 else 32 if texts < 1024 else _FINEST
