"""What a report shows, as data: gathered by `gathering`, written by `html` and `markdown`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.report.heatmap import Heatmap


ALPHA = 0.05  # significance level
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Case:
    """A question that one system answers better than another."""

    question: str
    values: tuple[float, float]
    relevant: tuple[str, ...] = ()
    first: str = ""  # the text that the first system ranks highest
    second: str = ""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Systems measured on the same questions, or one system on several collections."""

    name: str
    results: Sequence[Result]  # a row each
    comparisons: Sequence[Comparison] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compared: tuple[str, str] = ("", "")
    wins: Sequence[Case] = ()
    losses: Sequence[Case] = ()
    scores: Sequence[tuple[str, Sequence[float]]] = ()  # of the best system: relevant, others
    of_collections: bool = False  # rows are collections

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(m for result in self.results for m in result.mean))

    def better_than(self, measure: str) -> dict[str, str]:
        """System -> letters of the systems that it beats significantly (randomisation, Holm)."""
        letters = dict(zip((r.name for r in self.results), LETTERS, strict=False))
        beaten: dict[str, set[str]] = {result.name: set() for result in self.results}
        for c in self.comparisons:
            if c.measure == measure and c.randomization_holm < ALPHA and c.difference:
                pair = (c.second, c.first) if c.difference > 0 else (c.first, c.second)
                beaten[pair[0]].add(letters.get(pair[1], ""))
        return {name: "".join(sorted(marks)) for name, marks in beaten.items()}


@dataclasses.dataclass(frozen=True)
class StageRow:
    """One finished stage."""

    name: str
    verb: str
    kind: str
    count: int
    seconds: float | None
    memory: int | None
    identity: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Content:
    """All that a report shows."""

    title: str
    evaluations: Sequence[Evaluation] = ()
    curves: Mapping[str, Sequence[Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    indexes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    stages: Sequence[StageRow] = ()
    gin: str = ""
    heatmap: Heatmap | None = None  # systems by collections
    conclusion: Mapping[str, Any] | None = None  # of `qac conclude`: verdict, provenance
