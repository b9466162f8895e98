"""Fusion: one run out of several, by ranks or by scores."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.formats.runs import Ranking, Run, ranked


# How convex fusion brings a query's scores to one scale.
THEORETICAL, MIN_MAX = SCALES = ("theoretical", "min_max")
# Of a hybrid index: as theoretical, but BM25's score is a share of what the question's words say.
INFORMATION = "information"
# Weights of BM25 that are tried.
GRID = tuple(n / 20 for n in range(21))
# The lowest possible scores.
BM25, COSINE = 0.0, -1.0

_UNIT = 1 + 1e-4  # cosines of rounded vectors

Runs = Sequence[Mapping[str, Ranking]]


@dataclasses.dataclass(frozen=True)
class Fusion(Checked):
    """How a hybrid index joins its two rankings."""

    weight: float = option(
        0.25,
        "weight of BM25's score (0: vectors alone); the vectors' score has the rest of 1",
        at_least=0,
        at_most=1,
    )
    normalization: str = option(
        INFORMATION,
        "scale of a query's scores: from the lowest possible one (theoretical), or the lowest of "
        "its first passages (min_max), to its highest; information: as theoretical, but BM25's is "
        "divided by the sum of the idf of the query's words, so it counts little where only common "
        "words match",
        choices=(INFORMATION, *SCALES),
    )
    depth: int = option(
        100, "first passages of each ranking that are scaled and fused, at least", at_least=1
    )
    windows: float = option(
        0.7,
        "share of the best window in a passage's dense score, where the index has windows",
        at_least=0,
        at_most=1,
    )


def reciprocal_rank(
    runs: Runs, *, k: float = 60.0, weights: Sequence[float] = (), depth: int | None = None
) -> Run:
    """Cormack, Clarke and Büttcher (SIGIR 2009): the sum of weight / (k + rank)."""
    each = _one_each(weights, runs)
    fused = {}
    for query in _queries(runs):
        total: dict[str, float] = {}
        for run, weight in zip(runs, each, strict=True):
            if (ranking := run.get(query)) is not None:
                for rank, name in enumerate(ranking.ids, 1):
                    total[name] = total.get(name, 0.0) + weight * (1.0 / (k + rank))
        fused[query] = ranked(tuple(total), list(total.values())).top(depth)
    return fused


def convex(
    runs: Runs,
    *,
    weights: Sequence[float] = (),
    normalization: str = THEORETICAL,
    depth: int | None = None,
) -> Run:
    """The mean of normalised scores, weighted (Bruch, Gai and Ingber, TOIS 2023).

    A passage that is missing from a run gets the score of the run's last passage.
    """
    shares = np.asarray(_one_each(weights, runs))
    if (shares < 0).any() or not shares.any():
        raise UserError("weights are 0 or more for each run, and not all 0")
    shares = shares / shares.sum()
    lowest = [lowest_score(run) for run in runs]
    fused = {}
    for query in _queries(runs):
        rankings = [run.get(query) for run in runs]
        names = tuple(dict.fromkeys(name for r in rankings if r is not None for name in r.ids))
        places = {name: place for place, name in enumerate(names)}
        parts = np.zeros((len(runs), len(names)))
        for row, ranking, bound in zip(parts, rankings, lowest, strict=True):
            if ranking is not None and ranking.ids:
                scores = ranking.scores.astype(np.float64)
                row[:] = scores.min()
                row[[places[name] for name in ranking.ids]] = scores
                offset, unit = scale(scores, normalization, bound)
                row[:] = (row - offset) / unit
        fused[query] = ranked(names, shares @ parts).top(depth)
    return fused


def merged(runs: Runs, depth: int | None) -> Run:
    """Runs of one encoder over different passages as one; a passage has the best of its scores."""
    together = {}
    for query in _queries(runs):
        best: dict[str, float] = {}
        for ranking in (run[query] for run in runs if query in run):
            for name, score in zip(ranking.ids, ranking.scores.tolist(), strict=True):
                best[name] = max(score, best.get(name, score))
        together[query] = ranked(tuple(best), list(best.values())).top(depth)
    return together


def _queries(runs: Runs) -> dict[str, None]:
    return dict.fromkeys(query for run in runs for query in run)


def _one_each(weights: Sequence[float], runs: Runs) -> list[float]:
    if len(weights) not in (0, len(runs)):
        raise UserError(f"{len(weights)} weights for {len(runs)} runs; give one for each run")
    return list(weights) or [1.0] * len(runs)


def lowest_score(run: Mapping[str, Ranking]) -> float | None:
    """The lowest score that a system can give: cosines -1, BM25 0; None where it is not known."""
    scores = [ranking.scores for ranking in run.values() if ranking.ids]
    low = min((float(s.min()) for s in scores), default=0.0)
    high = max((float(s.max()) for s in scores), default=0.0)
    if low >= -_UNIT and high <= _UNIT:
        return COSINE
    return BM25 if low >= 0 else None


def scale(first: np.ndarray, normalization: str, lowest: float | None) -> tuple[float, float]:
    """(offset, unit): a query's normalised scores are (score - offset) / unit. `first`: of its
    first passages; `lowest`: of `theoretical`, the lowest possible one (None: of `first`).
    """
    if not len(first):
        return 0.0, 1.0
    first = first.astype(np.float64)
    offset = first.min() if normalization == MIN_MAX or lowest is None else lowest
    unit = first.max() - offset
    # Where all scores are equal, they say nothing.
    return float(offset), float(unit) if unit > 0 else 1.0


@dataclasses.dataclass(frozen=True)
class Choice:
    """A weight chosen on judged questions: the second system's; the first has the rest of 1."""

    weight: float
    best: float  # the one with the highest mean
    prior: float
    questions: int
    curve: tuple[tuple[float, float, float], ...]
    """(weight, mean reciprocal rank, standard error of its difference to the best mean)"""

    def __str__(self) -> str:
        means = {weight: mean for weight, mean, _ in self.curve}
        return (
            f"weight {self.weight:g} chosen on {self.questions:,} questions, MRR@10 "
            f"{means[self.weight]:.4f} (best weight {self.best:g}: {means[self.best]:.4f})"
        )


def choose(gains: np.ndarray, grid: Sequence[float], prior: float) -> Choice:
    """The weight nearest to `prior` that is not clearly worse than the best one.

    `gains`: the reciprocal rank of each question with each weight, [weights, questions]. Not
    clearly worse: the mean of the questions' differences to the best weight is at most two standard
    errors of that mean (the rule of Breiman et al. 1984, who take one, on paired differences).
    """
    count = gains.shape[1]
    if not count:
        raise UserError("no question to choose a weight on; give judged questions, or a weight")
    means = gains.mean(1)
    distances = np.abs(np.asarray(grid) - prior)
    best = min(range(len(grid)), key=lambda n: (-means[n].round(9), distances[n]))
    differences = gains[best] - gains
    spread = differences.std(1, ddof=1) if count > 1 else np.full(len(grid), np.inf)
    error = spread / np.sqrt(count)
    # Between the best and the prior: weights beyond it differ so much that few are clearly worse.
    low, high = sorted((prior, grid[best]))
    near = [
        n
        for n in range(len(grid))
        if n == best or low <= grid[n] <= high and means[best] - means[n] <= 2 * error[n]
    ]
    chosen = min(near, key=lambda n: (distances[n].round(9), -means[n]))
    curve = zip(map(float, grid), means.tolist(), error.tolist(), strict=True)
    return Choice(float(grid[chosen]), float(grid[best]), prior, count, tuple(curve))


def mixed(parts: np.ndarray, weight: float) -> np.ndarray:
    """The fused scores of normalised ones [2, passages]; `weight` is the second's."""
    return ((1 - weight) * parts[0] + weight * parts[1]).astype(np.float32)


def reciprocal_ranks(
    parts: np.ndarray, relevant: np.ndarray, grid: Sequence[float], cut: int = 10
) -> np.ndarray:
    """Of one question: 1 / rank of the first relevant passage with each weight (0 after `cut`).

    `parts`: normalised scores [2, passages]; `relevant`: whether each is, [passages].
    """
    fused = np.stack([mixed(parts, weight) for weight in grid])
    order = np.argsort(-fused, axis=1, kind="stable")[:, :cut]
    hits = relevant[order]
    first = hits.argmax(1) if hits.shape[1] else np.zeros(len(grid), np.int64)
    return np.where(hits.any(1), 1.0 / (1 + first), 0.0)
