"""Which of several systems to use, by the questions kept aside to choose on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from qac_jax.errors import UserError
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import randomization_test


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One system against the first: the difference of means, and its p-value."""

    name: str
    mean: float
    difference: float = 0.0
    p: float = 1.0


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The system that is chosen, its place, and what was compared."""

    chosen: str
    place: int
    measure: str
    questions: int
    candidates: tuple[Candidate, ...]

    @property
    def changed(self) -> bool:
        """Whether another system than the first is chosen."""
        return self.place > 0


def choose(
    results: Sequence[Result],
    measure: str,
    *,
    level: float = 0.05,
    permutations: int = 10_000,
    seed: int = 0,
) -> ModelChoice:
    """The best of those that are better than the first by more than noise, or the first.

    `level` is the highest p-value of the randomisation test at which a difference counts.
    """
    if not results or measure not in results[0].mean:
        raise UserError(f"there is no {measure} to choose by; evaluate with this measure")
    first = results[0].values(measure)
    candidates = []
    for result in results:
        values = result.values(measure)
        if values.keys() != first.keys():
            raise UserError(
                f"{result.name} and {results[0].name} were evaluated on different questions; "
                "choose among runs on the same ones"
            )
        gains = np.array([values[query] - first[query] for query in first])
        p = randomization_test(gains, permutations, seed) if gains.any() else 1.0
        mean = result.mean[measure]
        candidates.append(Candidate(result.name, mean, mean - results[0].mean[measure], p))
    better = [n for n, c in enumerate(candidates) if n and c.difference > 0 and c.p <= level]
    place = max(better, key=lambda n: candidates[n].mean, default=0)
    return ModelChoice(candidates[place].name, place, measure, len(first), tuple(candidates))
