"""Fusion: one run out of several, by ranks or by scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.formats.runs import Ranking, Run, ranked


def reciprocal_rank(
    runs: Sequence[Mapping[str, Ranking]],
    *,
    k: float = 60.0,
    weights: Sequence[float] = (),
    depth: int | None = None,
) -> Run:
    """Cormack, Clarke and Büttcher (SIGIR 2009): the sum of weight / (k + rank)."""
    if k < 0:
        raise UserError(f"k = {k:g} of reciprocal rank fusion; expected 0 or more (usually 60)")

    def gains(ranking: Ranking) -> np.ndarray:
        return 1.0 / (k + np.arange(1, len(ranking.ids) + 1))

    return _sum(runs, gains, weights, depth)


def weighted_scores(
    runs: Sequence[Mapping[str, Ranking]],
    *,
    weights: Sequence[float] = (),
    normalization: str = "min_max",
    depth: int | None = None,
) -> Run:
    """The weighted sum of scores, brought to one scale for each query.

    A passage that is not in a run gets 0 from it: with `min_max` the same as the run's last
    passage; with `none` (all runs have one scale) a score of 0.
    """
    if normalization not in NORMALIZATIONS:
        raise UserError(
            f"unknown normalization {normalization!r}; {nearest(normalization, NORMALIZATIONS)}"
        )
    return _sum(runs, NORMALIZATIONS[normalization], weights, depth)


def _min_max(ranking: Ranking) -> np.ndarray:
    scores = ranking.scores.astype(np.float64)
    lowest, span = scores.min(), np.ptp(scores)
    return (scores - lowest) / span if span else np.ones_like(scores)


def _plain(ranking: Ranking) -> np.ndarray:
    return ranking.scores.astype(np.float64)


NORMALIZATIONS: dict[str, Callable[[Ranking], np.ndarray]] = {"min_max": _min_max, "none": _plain}


def _sum(
    runs: Sequence[Mapping[str, Ranking]],
    gains: Callable[[Ranking], np.ndarray],
    weights: Sequence[float],
    depth: int | None,
) -> Run:
    if weights and len(weights) != len(runs):
        raise UserError(f"{len(weights)} weights for {len(runs)} runs; give one for each run")
    fused = {}
    for query in dict.fromkeys(query for run in runs for query in run):
        total: dict[str, float] = {}
        for run, weight in zip(runs, weights or [1.0] * len(runs), strict=True):
            ranking = run.get(query)
            if ranking is None or not ranking.ids:
                continue
            for name, gain in zip(ranking.ids, gains(ranking).tolist(), strict=True):
                total[name] = total.get(name, 0.0) + weight * gain
        ranking = ranked(tuple(total), list(total.values()))
        fused[query] = ranking if depth is None else ranking.top(depth)
    return fused
