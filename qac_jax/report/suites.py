"""Metrics of many collections: one system's table, and the heat map of several systems."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, nearest
from qac_jax.evaluation import benchmarks
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, MSMARCO, QUESTIONS, Suite
from qac_jax.evaluation.results import Result, read
from qac_jax.report import plots, tables


NDCG = "ndcg@10"

# NQ is a collection of BEIR's as well as a question set.
_QUESTIONS = "questions/"


def gathered(source: str) -> list[Result]:
    """The results in folders joined by commas; question sets are named after their folders."""
    gathered: dict[str, Result] = {}
    for folder in filter(None, map(str.strip, source.split(","))):
        name = os.path.basename(os.path.abspath(folder))
        for result in _named(artifacts.load(folder, "metrics"), name):
            if gathered.setdefault(result.name, result) is not result:
                raise UserError(f"{folder} has figures of {result.name} again; give each set once")
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


def text(results: Sequence[Result], facts: Mapping[str, Any]) -> str:
    """Results of collections for the screen, with the averages if there are any."""
    table = tables.figures(results, "collection")
    return f"{table}\n\n{tables.suites({'': suite(results)})}" if "averages" in facts else table


def of_collections(artifact: Artifact) -> bool:
    """Whether the rows of these metrics are collections, and not runs on one."""
    named = any(artifact.fields.get(name) for name in ("beir", "suite"))
    return artifact.stage == "suite" or named


def is_known(results: Sequence[Result]) -> bool:
    """Whether the papers' table has at least two of these collections, or a question set."""
    figures = suite(results)
    return len({*BEIR14, MSMARCO} & figures.ndcg.keys()) > 1 or bool(figures.hits)


def _named(artifact: Artifact, name: str) -> Iterator[Result]:
    """Results under the names of their sets, without the values of single queries."""
    runs, facts = read(artifact)
    if not of_collections(artifact):
        if len(runs) != 1:
            raise UserError(f"{artifact.path} has metrics of {len(runs)} runs; give one's each")
        runs = [dataclasses.replace(runs[0], name=name)]
    for result in runs:
        name = result.name
        if facts.get("protocol") == "answers":
            if name not in QUESTIONS:
                near = nearest(name, QUESTIONS)
                raise UserError(f"folder {name!r} has figures of questions; {near}")
            name = _QUESTIONS + name
        yield dataclasses.replace(result, name=name, per_query={})


def heatmap(systems: Mapping[str, Suite]) -> str | None:
    """Which pseudo-queries suit which collections: AugTriever's heat map (appendix A.2).

    A row is a system, a column MS MARCO, a group of collections (`benchmarks.GROUPS`, as the paper
    prints them) or a collection that is in no group; columns without any value are left out. A
    group has a value only if all its members have one, so where BEIR is incomplete its sets have
    columns of their own.
    """
    rows = {name: dict(_columns(suite)) for name, suite in systems.items()}
    names = dict.fromkeys(column for row in rows.values() for column in row)
    kept = [c for c in names if any(row.get(c) is not None for row in rows.values())]
    if not kept:
        raise UserError(f"no collection has {NDCG}, and no group of them is whole")
    figures = {name: [row.get(column) for column in kept] for name, row in rows.items()}
    return plots.heatmap(kept, figures, "nDCG@10 by system and group of collections")


def _columns(suite: Suite) -> Iterator[tuple[str, float | None]]:
    yield "MS MARCO", suite.ndcg.get(MSMARCO)
    yield from suite.groups().items()
    grouped = {name for members in GROUPS.values() for name in members} | {MSMARCO, *BEIR14}
    whole = not suite.missing()
    for name, value in suite.ndcg.items():
        if name not in grouped or (not whole and name != MSMARCO):
            yield BEIR14.get(name, name), value
