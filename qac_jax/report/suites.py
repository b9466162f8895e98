"""Metrics of many collections: one system's table, and the heat map of several systems.

results = gathered("out/beir,out/questions/nq,out/questions/triviaqa")
tables.suites({"mine": suite(results)})
Heatmap.of({"crops": suite(results), "spans": suite(others)}).plot()
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, nearest
from qac_jax.evaluation import benchmarks
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, MSMARCO, QUESTIONS, Suite
from qac_jax.evaluation.results import Result, read
from qac_jax.report import tables
from qac_jax.report.plots import Plot, heatmap


KIND = "metrics"
NDCG = "ndcg@10"

# NQ is a collection of BEIR's as well as a question set.
_QUESTIONS = "questions/"
_ALIASES = {
    "trivia": "triviaqa",
    "webquestions": "webq",
    "trec": "curatedtrec",
    "curated": "curatedtrec",
    "entityqs": "entityquestions",
    "eq": "entityquestions",
}


def gathered(source: str) -> list[Result]:
    """The results in folders joined by commas; question sets are named after their folders."""
    gathered: dict[str, Result] = {}
    for folder in filter(None, map(str.strip, source.split(","))):
        name = os.path.basename(os.path.abspath(folder))
        for result in _named(artifacts.load(folder, KIND), name):
            if result.name in gathered:
                raise UserError(
                    f"{folder} is the second with figures of {result.name}; give each set once"
                )
            gathered[result.name] = result
    return list(gathered.values())


def suite(results: Sequence[Result]) -> Suite:
    """The table's values: nDCG@10 of collections, hit-rates of question sets."""
    ndcg = {benchmarks.set_name(r.name): r.mean[NDCG] for r in results if NDCG in r.mean}
    questions = [r for r in results if r.name.startswith(_QUESTIONS)]
    return Suite(ndcg, {r.name.removeprefix(_QUESTIONS): r.hit_rates() for r in questions})


def facts(results: Sequence[Result]) -> dict[str, Any]:
    """Facts stored beside these results: the papers' averages, and the sets that are missing."""
    figures = suite(results)
    return {
        "averages": figures.summary(),
        "missing_sets": figures.missing(),
        "table": figures.columns(),
        "groups": figures.groups(),
    }


def text(
    results: Sequence[Result],
    facts: Mapping[str, Any],
    printed: Callable[[str], str] = lambda measure: measure,
) -> str:
    """Results of collections for the screen, with the averages if there are any; `printed` gives
    the name that a measure is printed by."""
    means = {r.name: {printed(name): value for name, value in r.mean.items()} for r in results}
    table = tables.figures(means, "collection")
    return f"{table}\n\n{tables.suites({'': suite(results)})}" if "averages" in facts else table


def of_collections(artifact: Artifact) -> bool:
    """Whether the rows of these metrics are collections, and not runs on one."""
    fields = artifact.fields
    named = any(fields.get(name) for name in ("beir", "mteb", "suite"))
    return artifact.stage == "suite" or named


def is_known(results: Sequence[Result]) -> bool:
    """Whether the papers' table has at least two of these collections, or a question set."""
    known = {*BEIR14, MSMARCO}
    figures = suite(results)
    return len(known & figures.ndcg.keys()) > 1 or bool(figures.hits)


def _named(artifact: Artifact, name: str) -> Iterator[Result]:
    """Results under the names of their sets, without the values of single queries."""
    runs, facts = read(artifact)
    by_answers = facts.get("protocol") == "answers"
    if not of_collections(artifact):
        if len(runs) != 1:
            raise UserError(
                f"{artifact.path} holds metrics of {len(runs)} runs; a table of collections is "
                "one system's, so give metrics of one run each"
            )
        runs = [dataclasses.replace(runs[0], name=name)]
    for result in runs:
        if by_answers:
            result = dataclasses.replace(result, name=_QUESTIONS + _question_set(result.name))
        elif NDCG not in result.mean and not result.name.startswith(_QUESTIONS):
            raise UserError(
                f"{artifact.path} has no {NDCG} of {result.name}, which the table shows; evaluate "
                "it with that measure"
            )
        yield dataclasses.replace(result, per_query={})


def _question_set(name: str) -> str:
    plain = "".join(c for c in name.lower() if c.isalnum())
    plain = _ALIASES.get(plain, plain)
    if plain not in QUESTIONS:
        raise UserError(
            f"the folder {name!r} has figures of questions, but is not named after a question set "
            f"of the papers ({nearest(plain, QUESTIONS)}); name it after its set"
        )
    return plain


@dataclasses.dataclass(frozen=True)
class Heatmap:
    """Which pseudo-queries suit which collections: AugTriever's heat map (appendix A.2).

    A row is a system, a column a group of collections (`benchmarks.GROUPS`, as the paper prints
    them) or a collection. A cell holds the mean nDCG@10, None where a system has none; its shade is
    its position between the lowest and the highest value of the column. A group has a value only if
    all its members have one, so other collections have columns of their own.
    """

    columns: tuple[str, ...]
    figures: Mapping[str, tuple[float | None, ...]]

    @classmethod
    def of(cls, systems: Mapping[str, Suite]) -> Heatmap:
        """Columns without any value are left out."""
        rows = {name: dict(_columns(suite)) for name, suite in systems.items()}
        names = dict.fromkeys(column for row in rows.values() for column in row)
        kept = tuple(c for c in names if any(row.get(c) is not None for row in rows.values()))
        if not kept:
            raise UserError(
                "no group of collections is complete, and no other collection has nDCG@10; "
                "evaluate more collections"
            )
        return cls(kept, {n: tuple(row.get(c) for c in kept) for n, row in rows.items()})

    def shades(self) -> dict[str, tuple[float | None, ...]]:
        """0 for the lowest figure of a column to 1 for the highest (all equal: 1)."""
        shaded = []
        for column in zip(*self.figures.values(), strict=True):
            known = [value for value in column if value is not None]
            low, span = min(known), max(known) - min(known)
            shaded.append(
                [None if v is None else (v - low) / span if span else 1.0 for v in column]
            )
        return dict(zip(self.figures, zip(*shaded, strict=True), strict=True))

    def plot(self) -> Plot:
        shades = self.shades()
        cells = {
            name: list(zip(map(tables.percent, row), shades[name], strict=True))
            for name, row in self.figures.items()
        }
        return heatmap(self.columns, cells, "nDCG@10 by system and group of collections")


def _columns(suite: Suite) -> Iterator[tuple[str, float | None]]:
    """MS MARCO, the groups, then collections that are in no group."""
    yield "MS MARCO", suite.ndcg.get(MSMARCO)
    yield from suite.groups().items()
    grouped = {name for members in GROUPS.values() for name in members} | {MSMARCO, *BEIR14}
    whole = all(name in suite.ndcg for name in BEIR14)
    for name, value in suite.ndcg.items():
        # If BEIR is incomplete, its groups are missing: then its sets are shown.
        if name not in grouped or (not whole and name != MSMARCO):
            yield BEIR14.get(name, name), value
