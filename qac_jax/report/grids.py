"""Many systems, several seeds: one table of metrics, and which differences are significant.

A run of a system has one result a seed. The table shows their mean and their standard deviation.
Tests are paired over queries, with each query's mean over the seeds: all seeds use the same
queries, so that counting them separately would overstate the evidence. Each seed is tested by
itself too. Two families of comparisons are corrected by Holm, each by itself: all systems on one
run, and all runs (and baselines) of one system.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation import significance
from qac_jax.evaluation.benchmarks import Suite
from qac_jax.evaluation.results import Result
from qac_jax.report import suites, tables
from qac_jax.report.suites import NDCG
from qac_jax.report.tables import number, probability


# system -> seed -> run -> its metrics.
Figures = Mapping[str, Mapping[int, Mapping[str, Result]]]
_COMPARED = ("difference", "mean", "won/lost/tied", "t-test, Holm", "randomisation, Holm", "seeds")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which runs are rows, with labels: those of every system, and baselines that no system has."""

    rows: Mapping[str, str]
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] = ("mrr@10",)  # the first one is tested
    permutations: int = 10_000


def summarize(figures: Figures, layout: Layout, *, tested: bool = True) -> dict[str, Any]:
    """All rows and, if `tested`, all comparisons, as JSON."""
    first = next(iter(figures.values()))
    baselines = [("", run, label, first) for run, label in layout.baselines.items()]
    systems = [
        (system, run, label, seeds)
        for run, label in layout.rows.items()
        for system, seeds in figures.items()
    ]
    rows = [
        _row(system, label, {s: runs[run] for s, runs in seeds.items() if run in runs}, layout)
        for system, run, label, seeds in (*baselines, *systems)
    ]
    return {
        "measures": list(layout.measures),
        "seeds": sorted({seed for seeds in figures.values() for seed in seeds}),
        "rows": [row for row in rows if row["per_seed"]],
        "comparisons": _comparisons(figures, layout) if tested else [],
    }


def heatmap(summary: Mapping[str, Any]) -> str:
    """nDCG@10 of systems by collections, which are the rows' labels; means over seeds."""
    systems: dict[str, dict[str, float]] = {}
    for row in summary["rows"]:
        if row["system"]:
            if NDCG not in row["mean"]:
                raise UserError(f"a heat map shows {NDCG}; add it to grid.Grid.measures")
            systems.setdefault(row["system"], {})[row["run"]] = row["mean"][NDCG]
    return suites.heatmap({system: Suite(figures) for system, figures in systems.items()})


def markdown(summary: Mapping[str, Any], title: str = "") -> str:
    """The same as Markdown: metrics, then the families of comparisons."""
    measures, seeds = summary["measures"], summary["seeds"]
    first = measures[0]
    header = ["system", "run", *measures, *(f"{first}, seed {seed}" for seed in seeds)]
    rows = [
        [
            row["system"] or tables.ABSENT,
            row["run"],
            *(_spread(row, measure) for measure in measures),
            *(number(row["per_seed"].get(str(seed), {}).get(first)) for seed in seeds),
        ]
        for row in summary["rows"]
    ]
    lines = [f"# {tables.unmarked(title)}", ""] if title else []
    lines += [tables.markdown(header, rows, aligned=True)]
    for family, compared in itertools.groupby(summary["comparisons"], key=itemgetter("family")):
        name = tables.unmarked(family)
        rows = [
            [
                f"{c['second']} − {c['first']}",
                f"{c['difference']:+.4f}",
                f"{c['wins']}/{c['losses']}/{c['ties']}",
                probability(c["t_test_holm"]),
                probability(c["randomization_holm"]),
                " ".join(f"{of['difference']:+.4f}" for of in c["per_seed"].values()),
            ]
            for c in compared
        ]
        lines += ["", f"## {name}: differences in {first}, paired over queries", ""]
        lines += [tables.markdown(_COMPARED, rows, aligned=True)]
    return "\n".join(lines) + "\n"


def _row(system: str, label: str, results: Mapping[int, Result], layout: Layout) -> dict[str, Any]:
    per_seed = {
        str(seed): {measure: result.mean[measure] for measure in layout.measures}
        for seed, result in results.items()
    }
    columns = {m: [values[m] for values in per_seed.values()] for m in layout.measures}
    return {
        "system": system,
        "run": label,
        "mean": {m: sum(values) / max(len(values), 1) for m, values in columns.items()},
        "deviation": {
            m: statistics.stdev(values) if len(values) > 1 else None
            for m, values in columns.items()
        },
        "per_seed": per_seed,
    }


def _comparisons(figures: Figures, layout: Layout) -> list[dict[str, Any]]:
    """Every family, pooled over seeds, with each seed beside it."""
    labels = {**layout.baselines, **layout.rows}
    whole = {
        (system, run): {seed: runs[run] for seed, runs in seeds.items()}
        for system, seeds in figures.items()
        for run in labels
        if all(run in runs for runs in seeds.values())
    }
    families = {
        label: {system: whole[system, run] for system in figures if (system, run) in whole}
        for run, label in layout.rows.items()
    }
    for system in figures:
        members = {label: whole[system, r] for r, label in labels.items() if (system, r) in whole}
        # Rows may be different collections, whose questions cannot be paired.
        questions = {frozenset(r.per_query) for of in members.values() for r in of.values()}
        if len(questions) == 1:
            families[system] = members
    measure = layout.measures[0]

    def tested(values: Mapping[str, dict[str, float]]) -> list[significance.Comparison]:
        return significance.compare(values, measure, permutations=layout.permutations)

    compared = []
    for family, members in families.items():
        common = set.intersection(*(set(of) for of in members.values())) if members else set()
        per_seed = {
            str(seed): tested({name: of[seed].values(measure) for name, of in members.items()})
            for seed in sorted(common)
            if len(common) > 1
        }
        means = {}
        for name, of in members.items():
            columns = [result.values(measure) for result in of.values()]
            means[name] = {q: sum(c[q] for c in columns) / len(columns) for q in columns[0]}
        pooled = tested(means)
        for place, comparison in enumerate(pooled):
            each = {seed: dataclasses.asdict(of[place]) for seed, of in per_seed.items()}
            compared.append({"family": family, **dataclasses.asdict(comparison), "per_seed": each})
    return compared


def _spread(row: Mapping[str, Any], measure: str) -> str:
    deviation = row["deviation"][measure]
    return number(row["mean"][measure]) + ("" if deviation is None else f" ± {deviation:.4f}")
