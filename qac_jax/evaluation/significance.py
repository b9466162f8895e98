"""Is the difference of two runs significant? Paired tests over queries, with wins and losses.

Smucker, Allan and Carterette (CIKM 2007) recommend the randomisation test; Student's paired t-test
agrees with it closely on retrieval measures. Several comparisons at once are corrected by Holm.
`choose` says which of several systems to use, by the questions kept aside to choose on.
"""

import dataclasses
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from qac_jax.errors import UserError
from qac_jax.evaluation.results import Result


PERMUTATIONS = 100_000

# Up to this number of differing queries all patterns of signs are tried instead of drawn.
_EXACT = 16
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The second run against the first on one measure; `difference` is second minus first."""

    first: str
    second: str
    measure: str
    queries: int
    difference: float
    wins: int
    losses: int
    ties: int
    t_test: float
    t_test_holm: float
    randomization: float
    randomization_holm: float


def compare(
    per_query: Mapping[str, Mapping[str, float]],
    measure: str,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Comparison]:
    """All pairs of runs (name -> query -> value) on one measure, corrected together."""
    pairs = list(itertools.combinations(per_query, 2))
    differences = [_paired(per_query, *pair) for pair in pairs]
    t_tests = [paired_t_test(d) for d in differences]
    randomized = [randomization_test(d, permutations, seed) for d in differences]
    tests = zip(t_tests, holm(t_tests), randomized, holm(randomized), strict=True)
    return [
        Comparison(
            *pair,
            measure,
            len(d),
            float(d.mean()),
            int((d > 0).sum()),
            int((d < 0).sum()),
            int((d == 0).sum()),
            *tested,
        )
        for pair, d, tested in zip(pairs, differences, tests, strict=True)
    ]


def _paired(per_query: Mapping[str, Mapping[str, float]], first: str, second: str) -> np.ndarray:
    """What the second run has more than the first on each query."""
    before, after = per_query[first], per_query[second]
    if before.keys() != after.keys():
        raise UserError(f"{first} and {second} were scored on different queries; compare like ones")
    return np.array([after[query] - before[query] for query in before])


def compared(
    results: Sequence[Result],
    measures: Sequence[str],
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Comparison]:
    found: list[Comparison] = []
    for measure in measures:
        values = {result.name: result.values(measure) for result in results}
        found += compare(values, measure, permutations=permutations, seed=seed)
    return found


def paired_t_test(differences: Sequence[float] | np.ndarray) -> float:
    """The two-sided p-value of Student's test that the mean difference is zero."""
    from scipy import stats

    values = np.asarray(differences, np.float64)
    if len(values) < 2:
        return 1.0
    mean = float(values.mean())
    # All differences are equal up to rounding: t is infinite, or 0/0 where they are zero.
    if float(values.std(ddof=1)) <= 1e-12 * abs(mean):
        return 0.0 if mean else 1.0
    return float(stats.ttest_rel(values, np.zeros_like(values)).pvalue)


def randomization_test(
    differences: Sequence[float] | np.ndarray, permutations: int = PERMUTATIONS, seed: int = 0
) -> float:
    """The two-sided p-value of Fisher's test: how often random signs give a mean as large.

    With few differing queries all signs are tried; else the data counts as one of the draws, so
    that p is never 0. scipy.stats.permutation_test, which sorts, takes ten times as long.
    """
    values = np.asarray(differences, np.float64)
    # A query on which both runs are equal does not change the sum.
    unequal = values[values != 0]
    n, total = len(unequal), float(unequal.sum())
    # Sums that are equal but for rounding count as equal.
    bound = abs(total) - 1e-9 * float(np.abs(unequal).sum())
    if n <= _EXACT:
        patterns = np.arange(1 << n)[:, None] >> np.arange(n) & 1
        return float((np.abs(2 * (patterns @ unequal) - total) >= bound).mean())
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // n)
    reached = 0
    for start in range(0, permutations, block):
        count = min(block, permutations - start)
        bits = np.unpackbits(np.frombuffer(rng.bytes(count * -(-n // 8)), np.uint8))
        positive = bits.reshape(count, -1)[:, :n].astype(np.float64)
        reached += int((np.abs(2 * (positive @ unequal) - total) >= bound).sum())
    return (reached + 1) / (permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p-values, in the order of the argument."""
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    raised = np.arange(len(values), 0, -1) * values[order]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted.tolist()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One system against the first: the difference of means, its p-value, and what to expect."""

    name: str
    mean: float
    difference: float = 0.0
    p: float = 1.0
    expected: float = 0.0  # the difference on people's questions
    probability: float = 0.5  # that it is above 0


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The system that is chosen, its place, and what was compared."""

    chosen: str
    place: int
    measure: str
    questions: int
    candidates: tuple[Candidate, ...]


# What training added to a start's MRR@10 on people's questions, over ten collections that had none:
# mean and standard deviation (docs/results/own-documents.md).
_GAIN, _SPREAD = 0.03, 0.04
# How far a difference on generated questions lies from that on people's: its standard deviation,
# over the last four of these collections.
GENERATED = 0.05


def choose(
    results: Sequence[Result],
    measure: str,
    *,
    people: Container[str] = (),
    permutations: int = 10_000,
    seed: int = 0,
) -> ModelChoice:
    """The system of the highest expected gain over the first on people's questions, or the first.

    The gain has a normal prior from earlier runs, so few questions decide nothing against it, and
    many do. `people`: the questions that people asked; what the others say is doubted more.
    """
    values = {result.name: result.values(measure) for result in results}
    first, *_ = values
    by_people = np.array([query in people for query in values[first]], bool)
    candidates = []
    for result in results:
        gains = _paired(values, first, result.name)
        mean, difference = result.mean[measure], result.mean[measure] - results[0].mean[measure]
        expected, probability = 0.0, 0.5
        if result is not results[0]:
            expected, variance = _GAIN, _SPREAD**2
            for some, doubt in ((gains[~by_people], GENERATED), (gains[by_people], 0.0)):
                if len(some):
                    # Normal prior and normal observation; one question alone has no spread.
                    error = some.var(ddof=1) / len(some) if len(some) > 1 else 1.0
                    trust = variance / (variance + error + doubt**2)
                    expected = float((1 - trust) * expected + trust * some.mean())
                    variance *= 1 - trust
            probability = 1 - NormalDist(expected, max(math.sqrt(variance), 1e-9)).cdf(0)
        p = randomization_test(gains, permutations, seed) if gains.any() else 1.0
        candidates.append(Candidate(result.name, mean, difference, p, expected, probability))
    place = max(range(len(candidates)), key=lambda n: candidates[n].expected)
    return ModelChoice(
        candidates[place].name, place, measure, len(values[first]), tuple(candidates)
    )
