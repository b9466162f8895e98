"""How hard an approximate index must search for a promised recall, measured on a sample.

Recall grows with the leaves looked into and with the candidates reordered. For each number of
candidates the fewest sufficient leaves are found; of these points the fastest is taken.
Half of the sample chooses, the other half, which nothing was chosen by, tells what came out.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np

from qac_jax import progress
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.scann_index import Effort, Scann, largest_effort
from qac_jax.retrieval.vectors import Vectors


# Candidates that are tried, as multiples of k.
_MULTIPLES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
_TIMINGS = 3
# Twice the leaves without this much more recall: the candidates are too few, not the leaves.
_GAIN = 0.0003


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
    choosing, rest = slice(0, half), slice(half, len(queries))
    measured: dict[Effort, Point] = {}

    def shares(part: slice, effort: Effort) -> np.ndarray:
        """Recall of each query of a part; the search itself is timed."""
        began = time.perf_counter()
        _, rows = searcher.search(queries[part], k + (own is not None), effort)
        rate = len(rows) / (time.perf_counter() - began)
        found = recall(rows if own is None else without(rows, own[part]), truth[part])
        if part == choosing:  # the best of its timings: others may use the machine too
            before = measured[effort].queries_per_second if effort in measured else 0.0
            point = Point(effort.leaves, effort.reorder, float(found.mean()), max(rate, before))
            measured[effort] = point
        return found

    def judged(reorder: int, leaves: int) -> float:
        found = shares(choosing, Effort(leaves, reorder))
        # One standard error of room: the sample is a sample.
        return float(found.mean() - found.std() / len(found) ** 0.5)

    most = largest_effort(searcher.presets, len(searcher), k)
    enough: list[Effort] = []
    fewest = min(most.leaves, 1)
    # Fewer candidates need more leaves, and where all leaves do not suffice nothing less will.
    for reorder in _reorderings(most, k):
        found = least(functools.partial(judged, reorder), target, fewest, most.leaves)
        if found is None:
            break
        enough.append(Effort(found, reorder))
        fewest = found
    candidates = enough or [max(measured, key=lambda effort: measured[effort].recall)]
    for _ in range(_TIMINGS):
        for effort in candidates:
            shares(choosing, effort)
    best = max(candidates, key=lambda effort: measured[effort].queries_per_second)
    return Tuned(
        chosen=measured[best],
        held_out_recall=float(shares(rest, best).mean()),
        target=target,
        k=k,
        queries=len(queries),
        curve=tuple(sorted(measured.values(), key=lambda p: (p.reorder, p.leaves))),
    )


def tune_on_sample(
    searcher: Scann,
    vectors: Vectors,
    queries: np.ndarray | None,
    *,
    sample: int,
    k: int,
    target: float,
    seed: int,
) -> Tuned:
    """The same with a sample of queries, or of the vectors themselves (queries: None).

    Exact search says what is true; a vector that searches leaves itself out.
    """
    rng = np.random.default_rng(seed)
    own: np.ndarray | None = None
    if queries is None:
        own = rng.permutation(len(vectors))[:sample]
        queries = vectors.take(own).astype(np.float32)
    else:
        queries = queries[rng.permutation(len(queries))[:sample]]
    k = min(k, len(vectors) - 1)
    progress.say(f"index: exact search of {len(queries):,} queries, to measure recall on")
    _, truth = Exact(vectors).search(queries, k + 1)
    truth = truth[:, :k] if own is None else without(truth, own)
    return tune(searcher, queries, truth, target, own)


def least(judged: Callable[[int], float], target: float, low: int, most: int) -> int | None:
    """The smallest number from `low` to `most` whose figure reaches the target, to a sixteenth.

    Doubles from below, since what is large is slow, and gives up where doubling gains nothing.
    """
    high, before = low, -1.0
    while (figure := judged(high)) < target:
        if high >= most or figure - before < _GAIN:
            return None
        low, high, before = high, min(2 * high, most), figure
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        if judged(middle) >= target:
            high = middle
        else:
            low = middle
    return high


def without(rows: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Rankings of k + 1 rows as rankings of k that leave out the query's own row."""
    kept = np.empty((len(rows), rows.shape[1] - 1), rows.dtype)
    for place, (ranking, row) in enumerate(zip(rows, own, strict=True)):
        others = ranking[ranking != row]
        kept[place] = others[: kept.shape[1]]
    return kept


def _reorderings(most: Effort, k: int) -> list[int]:
    """The most candidates first."""
    return sorted({min(round(m * k), most.reorder) for m in _MULTIPLES}, reverse=True)
