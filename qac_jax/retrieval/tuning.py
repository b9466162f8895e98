"""How hard an approximate index must search for a promised recall, measured on a sample.

Recall grows with the leaves looked into and with the candidates reordered. For each number of
candidates the fewest sufficient leaves are found by halving; of these points the fastest is taken.
Half of the sample chooses, the other half, which nothing was chosen by, tells what came out.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np

from qac_jax.retrieval.scann_index import Effort, Scann, largest_effort


# Candidates that are tried, as multiples of k.
_MULTIPLES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)
_TIMINGS = 3


@dataclasses.dataclass(frozen=True)
class Point:
    """What one effort gives."""

    leaves: int
    reorder: int
    recall: float
    queries_per_second: float


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The chosen point, what it gives on queries that chose nothing, and all that was measured."""

    chosen: Point
    held_out_recall: float
    target: float
    k: int
    queries: int
    curve: tuple[Point, ...]

    @property
    def effort(self) -> Effort:
        return Effort(self.chosen.leaves, self.chosen.reorder)


def recall(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The share of each query's true rows that were found; -1 stands for no row."""
    pairs = zip(found, truth, strict=True)
    hits = [np.isin(t[t >= 0], f).mean() if (t >= 0).any() else 1.0 for f, t in pairs]
    return np.array(hits)


def tune(
    searcher: Scann, queries: np.ndarray, truth: np.ndarray, target: float, own: np.ndarray | None
) -> Tuned:
    """`truth` [queries, k] are the rows of exact search; `own` the row each query is, if it is."""
    half, k = len(queries) // 2, truth.shape[1]
    measured: dict[Effort, Point] = {}

    def found(part: slice, effort: Effort) -> np.ndarray:
        if own is None:
            return searcher.search(queries[part], k, effort)[1]
        rows = searcher.search(queries[part], k + 1, effort)[1]
        return without(rows, own[part])

    def sufficient(reorder: int, leaves: int) -> bool:
        effort = Effort(leaves, reorder)
        shares = recall(found(slice(0, half), effort), truth[:half])
        error = shares.std() / max(len(shares), 1) ** 0.5
        measured[effort] = Point(effort.leaves, effort.reorder, float(shares.mean()), 0.0)
        # One standard error of room: the sample is a sample.
        return shares.mean() - error >= target

    def rate(effort: Effort, timings: int) -> float:
        """Queries a second, the best of some timings: others may use the machine too."""
        seconds = []
        for _ in range(timings):
            began = time.perf_counter()
            searcher.search(queries, k, effort)
            seconds.append(time.perf_counter() - began)
        return len(queries) / min(seconds)

    most = largest_effort(searcher.presets, len(searcher), k)
    enough = []
    for reorder in _reorderings(most, k):
        leaves = _least(functools.partial(sufficient, reorder), most.leaves)
        if leaves is not None:
            enough.append(Effort(leaves, reorder))
    candidates = enough or [max(measured, key=lambda effort: measured[effort].recall)]
    for effort, point in measured.items():
        timed = rate(effort, _TIMINGS if effort in candidates else 1)
        measured[effort] = dataclasses.replace(point, queries_per_second=timed)
    best = max(candidates, key=lambda effort: measured[effort].queries_per_second)
    rest = slice(half, len(queries))
    return Tuned(
        chosen=measured[best],
        held_out_recall=float(recall(found(rest, best), truth[rest]).mean()),
        target=target,
        k=k,
        queries=len(queries),
        curve=tuple(sorted(measured.values(), key=lambda p: (p.reorder, p.leaves))),
    )


def without(rows: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Rankings of k + 1 rows as rankings of k that leave out the query's own row."""
    kept = np.empty((len(rows), rows.shape[1] - 1), rows.dtype)
    for place, (ranking, row) in enumerate(zip(rows, own, strict=True)):
        others = ranking[ranking != row]
        kept[place] = others[: kept.shape[1]]
    return kept


def _reorderings(most: Effort, k: int) -> list[int]:
    wanted = {min(round(multiple * k), most.reorder) for multiple in _MULTIPLES}
    return sorted(wanted | {most.reorder})


def _least(sufficient: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 1 to `most` that suffices, by halving (0 where most is 0)."""
    if not sufficient(most):
        return None
    low, high = 0, most
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        if sufficient(middle):
            high = middle
        else:
            low = middle
    return high
