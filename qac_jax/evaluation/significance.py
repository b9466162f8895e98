"""Is the difference of two runs significant? Paired tests over queries, with wins and losses.

Smucker, Allan and Carterette (CIKM 2007) recommend the randomisation test; Student's paired t-test
agrees with it closely on retrieval measures. Several comparisons at once are corrected by Holm.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from qac_jax.errors import UserError


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
    compared = []
    for first, second in pairs:
        if per_query[first].keys() != per_query[second].keys():
            raise UserError(
                f"{first} and {second} were scored on different queries; compare runs on the "
                f"same judgements"
            )
        values = per_query[first], per_query[second]
        difference = np.array([values[1][query] - values[0][query] for query in values[0]])
        compared.append(
            Comparison(
                first,
                second,
                measure,
                len(difference),
                float(difference.mean()),
                int((difference > 0).sum()),
                int((difference < 0).sum()),
                int((difference == 0).sum()),
                t := paired_t_test(difference),
                t,
                r := randomization_test(difference, permutations, seed),
                r,
            )
        )
    by_t = holm([c.t_test for c in compared])
    by_r = holm([c.randomization for c in compared])
    return [
        dataclasses.replace(c, t_test_holm=t, randomization_holm=r)
        for c, t, r in zip(compared, by_t, by_r, strict=True)
    ]


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
    differences: Sequence[float] | np.ndarray,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> float:
    """The two-sided p-value of Fisher's test: how often random signs give a mean as large.

    With few differing queries all signs are tried; otherwise `permutations` draws are made, and
    the data counts as one of them, so that p is never 0. scipy.stats.permutation_test gives the
    same p-values where all signs are tried, and takes ten times as long for draws (2.1 s to 0.17 s
    for 10,000 draws over 3,449 queries), because it sorts a random number for each sign.
    """
    if permutations < 1:
        raise UserError(f"permutations = {permutations}; expected 1 or more (such as 100000)")
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
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for step, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[i]))
        adjusted[i] = largest
    return adjusted
