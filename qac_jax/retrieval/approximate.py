"""What ScaNN's and FAISS's indexes have in common: presets by size, search effort, parts.

Presets follow ScaNN's rules of thumb, which suit FAISS as well: brute force below 20,000 rows,
quantised vectors and reordering below 100,000, and above that a tree of about 2 sqrt(rows) leaves.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from qac_jax.errors import UserError
from qac_jax.retrieval.exact import check_width


BRUTE_FORCE, HASHED = 20_000, 100_000
REORDERINGS = ("float32", "bfloat16", "int8")

# Candidates whose scores are computed exactly, as a multiple of k: always more than k, since the
# quantised scores may rank a true neighbour just behind the last of the top k.
SLACK, _USUAL_SLACK = 1.25, 5
# Without tuning at least this number of leaves is searched.
_FEW_LEAVES = 30


class Built(Protocol):
    """How a part was built, as far as it bounds the effort."""

    @property
    def leaves(self) -> int:
        """Leaves of its tree (lists of an inverted file); 0: none."""
        ...

    @property
    def hashed(self) -> bool:
        """Whether only candidates are scored exactly."""
        ...


@dataclasses.dataclass(frozen=True)
class Effort:
    """What trades speed for recall at search time."""

    leaves: int  # leaves searched (nprobe of an inverted file); 0: there is no tree
    # Candidates whose score is computed exactly (efSearch of a graph); 0: all scores are exact.
    reorder: int


def usual_effort(presets: Sequence[Built], k: int = 100) -> Effort:
    """The default without tuning: recall matters more than speed."""
    most = largest_effort(presets, _USUAL_SLACK * k, k)
    return Effort(min(most.leaves, max(most.leaves // 10, _FEW_LEAVES)), most.reorder)


def largest_effort(presets: Sequence[Built], rows: int, k: int) -> Effort:
    """As `Approximate.largest_effort`, for a number of rows."""
    hashed = any(preset.hashed for preset in presets)
    return Effort(max(p.leaves for p in presets), min(rows, 20 * k) if hashed else 0)


def tree_for(rows: int, leaves: int | None = None) -> tuple[int, bool]:
    """(leaves, hashed) for a number of rows; None: the usual number of leaves."""
    usual = _leaves(rows)
    if leaves is None:
        leaves = 0 if rows < HASHED else usual
    if leaves > rows:
        raise UserError(
            f"leaves={leaves} are more than the {rows} vectors; use about {usual}, or 0 for no tree"
        )
    return leaves, rows >= BRUTE_FORCE or leaves > 0


def check_reordering(name: str) -> None:
    if name not in REORDERINGS:
        raise UserError(f"reordering={name!r} is not one of {', '.join(REORDERINGS)}")


def _leaves(rows: int) -> int:
    """Twice the square root: a quarter faster at equal recall than the square root itself."""
    return max(1, round(2 * rows**0.5))


class Approximate(abc.ABC):
    """Searches the parts of an index; rows are numbered across the parts."""

    def __init__(
        self,
        parts: Sequence[Any],
        rows: Sequence[int],
        width: int,
        presets: Sequence[Built],
        effort: Effort | None = None,
    ):
        self.presets = presets
        self.effort = effort  # None: not tuned
        self.width = width
        self._parts = parts
        self._starts = [0, *np.cumsum(rows).tolist()]

    def __len__(self) -> int:
        return self._starts[-1]

    def search(
        self, queries: np.ndarray, k: int, effort: Effort | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Exact.search`: scores and rows of the approximate top k, row -1 for none."""
        check_width(queries, self.width)
        queries = np.ascontiguousarray(queries, np.float32)
        effort = effort or self.effort or usual_effort(self.presets, max(k, 100))
        candidates = max(effort.reorder, math.ceil(SLACK * k))
        scores = np.full((len(queries), k * len(self._parts)), -np.inf, np.float32)
        rows = np.full(scores.shape, -1, np.int64)
        if not len(queries):
            return scores[:, :k], rows[:, :k]
        for number, (part, preset) in enumerate(zip(self._parts, self.presets, strict=True)):
            start, stop = self._starts[number : number + 2]
            count = stop - start
            own = Effort(min(effort.leaves, preset.leaves), min(candidates, count))
            gains, best = self._search_part(part, preset, queries, min(k, count), own)
            place = slice(number * k, number * k + best.shape[1])
            missing = best < 0
            scores[:, place] = np.where(missing, -np.inf, gains)
            rows[:, place] = np.where(missing, -1, best + start)
        # Most rankings of a single part are in order; of equal scores the earlier row wins.
        loose = np.flatnonzero((scores[:, 1:] >= scores[:, :-1]).any(1))
        order = np.lexsort((rows[loose], -scores[loose]), axis=1)
        scores[loose] = np.take_along_axis(scores[loose], order, 1)
        rows[loose] = np.take_along_axis(rows[loose], order, 1)
        return scores[:, :k], rows[:, :k]

    @abc.abstractmethod
    def _search_part(
        self, part: Any, preset: Any, queries: np.ndarray, k: int, effort: Effort
    ) -> tuple[np.ndarray, np.ndarray]:
        """(scores, rows int64) [queries, at most k] of one part; row -1 where there is none."""

    def largest_effort(self, k: int) -> Effort:
        """The effort above which recall does not grow."""
        return largest_effort(self.presets, len(self), k)

    def named(self, effort: Effort) -> str:
        """An effort in the words of this kind of index."""
        return f"{effort.leaves} leaves and {effort.reorder} candidates"

    def remedy(self) -> str:
        """How to build where no effort reaches the wanted recall."""
        return "raise --leaves or give --dims_per_block 1"
