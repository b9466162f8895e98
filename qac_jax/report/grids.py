"""Many systems, several seeds: one table of metrics, and which differences are significant.

A run of a system has one result a seed. The table shows their mean and their standard deviation.
Tests are paired over queries, with each query's mean over the seeds: all seeds use the same
queries, so that counting them separately would overstate the evidence. Each seed is tested by
itself too. Two families of comparisons are corrected by Holm, each by itself: all systems on one
run, and all runs (and baselines) of one system.
"""

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation import significance
from qac_jax.evaluation.benchmarks import BEIR14, MSMARCO, Suite
from qac_jax.evaluation.results import Result
from qac_jax.report import plots, suites, tables
from qac_jax.report.suites import NDCG
from qac_jax.report.tables import number, probability


# system -> seed -> run -> its metrics.
Figures = Mapping[str, Mapping[int, Mapping[str, Result]]]
_COMPARED = ("difference", "mean", "won/lost/tied", "t-test, Holm", "randomisation, Holm", "seeds")


def summarize(
    figures: Figures,
    rows: Mapping[str, str],
    baselines: Mapping[str, str],
    *,
    measures: Sequence[str] = ("mrr@10",),
    permutations: int = 10_000,
) -> dict[str, Any]:
    """All rows and comparisons, as JSON; the first measure is tested.

    `rows`: runs of every system, with labels; `baselines`: those that no system has.
    """
    first = next(iter(figures.values()))
    shown = [("", run, label, first) for run, label in baselines.items()]
    for run, label in rows.items():
        shown += [(system, run, label, seeds) for system, seeds in figures.items()]
    return {
        "measures": list(measures),
        "seeds": sorted({seed for seeds in figures.values() for seed in seeds}),
        "rows": [
            _row(system, label, {seed: runs[run] for seed, runs in seeds.items()}, measures)
            for system, run, label, seeds in shown
        ],
        "comparisons": _comparisons(figures, rows, baselines, measures[0], permutations),
    }


def heatmap(summary: Mapping[str, Any]) -> str | None:
    """nDCG@10 of systems by collections, which are the rows' labels; means over seeds."""
    # Groups have sets by their folders' names.
    sets = {"MS MARCO": MSMARCO} | {printed: name for name, printed in BEIR14.items()}
    systems: dict[str, dict[str, float]] = {}
    for row in summary["rows"]:
        if row["system"]:
            if NDCG not in row["mean"]:
                raise UserError(f"a heat map shows {NDCG}; add it to grid.Grid.measures")
            name = sets.get(row["run"], row["run"])
            systems.setdefault(row["system"], {})[name] = row["mean"][NDCG]
    return suites.heatmap({system: Suite(figures) for system, figures in systems.items()})


def curves(
    summary: Mapping[str, Any], lines: Mapping[str, Mapping[str, float]], label: str
) -> str | None:
    """The first row's first measure: line -> system -> where on it."""
    measure = summary["measures"][0]
    rows = [row for row in summary["rows"] if row["system"]]
    figures = {r["system"]: r["mean"][measure] for r in rows if r["run"] == rows[0]["run"]}
    series = []
    for name, of in lines.items():
        systems = sorted(of, key=of.__getitem__)
        series.append(plots.Series(name, [of[s] for s in systems], [figures[s] for s in systems]))
    return plots.lines(series, label, f"{measure}, {rows[0]['run']}")


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
    lines += [tables.markdown(header, rows)]
    if "seconds" in summary:
        took = (f"{system} {of / 60:.1f}" for system, of in summary["seconds"].items())
        lines += ["", f"Minutes of all stages of a system, on average: {', '.join(took)}."]
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
        lines += [tables.markdown(_COMPARED, rows)]
    return "\n".join(lines) + "\n"


def _row(
    system: str, label: str, results: Mapping[int, Result], measures: Sequence[str]
) -> dict[str, Any]:
    per_seed = {str(seed): {m: r.mean[m] for m in measures} for seed, r in results.items()}
    columns = {m: [values[m] for values in per_seed.values()] for m in measures}
    return {
        "system": system,
        "run": label,
        "mean": {m: statistics.fmean(values) for m, values in columns.items()},
        "deviation": {
            m: statistics.stdev(values) if len(values) > 1 else None
            for m, values in columns.items()
        },
        "per_seed": per_seed,
    }


def _comparisons(
    figures: Figures,
    rows: Mapping[str, str],
    baselines: Mapping[str, str],
    measure: str,
    permutations: int,
) -> list[dict[str, Any]]:
    """Every family, pooled over seeds, with each seed beside it."""

    def values(system: str, run: str) -> dict[int, dict[str, float]]:
        return {seed: runs[run].values(measure) for seed, runs in figures[system].items()}

    families = {label: {s: values(s, run) for s in figures} for run, label in rows.items()}
    for system in figures:
        members = {label: values(system, run) for run, label in {**baselines, **rows}.items()}
        # Rows may be different collections, whose questions cannot be paired.
        if len({frozenset(of) for seeds in members.values() for of in seeds.values()}) == 1:
            families[system] = members
    compare = functools.partial(significance.compare, measure=measure, permutations=permutations)
    compared = []
    for family, members in families.items():
        seeds = sorted(next(iter(members.values())))
        per_seed = {
            str(seed): compare({name: of[seed] for name, of in members.items()})
            for seed in seeds
            if len(seeds) > 1
        }
        means = {
            name: {q: statistics.fmean(of[seed][q] for seed in seeds) for q in of[seeds[0]]}
            for name, of in members.items()
        }
        for place, pooled in enumerate(compare(means)):
            each = {seed: dataclasses.asdict(found[place]) for seed, found in per_seed.items()}
            compared.append({"family": family, **dataclasses.asdict(pooled), "per_seed": each})
    return compared


def _spread(row: Mapping[str, Any], measure: str) -> str:
    deviation = row["deviation"][measure]
    return number(row["mean"][measure]) + ("" if deviation is None else f" ± {deviation:.4f}")
