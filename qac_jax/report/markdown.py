"""A report's metrics and comparisons as Markdown, for a README or an issue."""

from __future__ import annotations

from collections.abc import Iterable

from qac_jax.evaluation.significance import Comparison
from qac_jax.report import tables, verdict
from qac_jax.report.content import ALPHA, LETTERS, Content, Evaluation
from qac_jax.report.tables import number, probability


COMPARED = (
    "difference",
    "measure",
    "mean",
    "won/lost/tied",
    "t-test p (Holm)",
    "randomis. p (Holm)",
)


def markdown(content: Content) -> str:
    """The whole report as far as it is tables."""
    parts = [f"# {content.title}"]
    if (conclusion := content.conclusion) is not None:
        listed = tables.markdown(verdict.HEADER, verdict.rows(conclusion["questions"]))
        parts += [conclusion["opening"], *conclusion["verdict"], "## Questions", listed]
    for evaluation in content.evaluations:
        header, rows = metrics(evaluation)
        parts += [f"## {evaluation.name}", tables.markdown(header, rows), legend(evaluation)]
        if chosen := [c for c in evaluation.comparisons if _is_of_the_best(c, evaluation)]:
            parts.append(tables.markdown(COMPARED, compared(chosen)))
    return tables.unmarked("\n\n".join(part for part in parts if part)) + "\n"


def metrics(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """A line a system: its letter, name, and metrics with the letters of those that it beats.

    A line a collection: its name and metrics, which are not compared with other collections'.
    """
    results, measures = evaluation.results, evaluation.measures
    if evaluation.of_collections:
        plain = [[r.name, *(number(r.mean.get(measure)) for measure in measures)] for r in results]
        return ["collection", *measures], plain
    marks = {measure: evaluation.better_than(measure) for measure in measures}
    best = {m: max((r.mean.get(m, -1.0) for r in results), default=0.0) for m in measures}
    rows = []
    for letter, result in zip(LETTERS, results, strict=False):
        row = [letter, result.name]
        for measure in measures:
            value = result.mean.get(measure)
            text = number(value)
            if value is not None and value == best[measure] and len(results) > 1:
                text = f"**{text}**"
            row.append(text + (f" ^{m}" if (m := marks[measure][result.name]) else ""))
        rows.append(row)
    return ["", "system", *measures], rows


def legend(evaluation: Evaluation) -> str:
    """What the table is about and what its letters mean."""
    counts = [result.queries for result in evaluation.results]
    if evaluation.of_collections:
        text = f"{sum(counts):,} questions on {len(counts)} collections"
    else:
        text = f"{max(counts, default=0):,} questions"
    if protocol := evaluation.facts.get("protocol"):
        text += f", protocol {protocol}"
    if evaluation.comparisons:
        text += f"; letters: better than those systems, p < {ALPHA} (randomisation test, Holm)"
    return text + "."


def compared(comparisons: Iterable[Comparison]) -> list[list[str]]:
    """A line a comparison, under COMPARED."""
    return [
        [
            f"{c.second} − {c.first}",
            c.measure,
            f"{c.difference:+.4f}",
            f"{c.wins}/{c.losses}/{c.ties}",
            f"{probability(c.t_test)} ({probability(c.t_test_holm)})",
            f"{probability(c.randomization)} ({probability(c.randomization_holm)})",
        ]
        for c in comparisons
    ]


def _is_of_the_best(comparison: Comparison, evaluation: Evaluation) -> bool:
    """Of the best system, by the first measure: twelve systems have hundreds of comparisons."""
    best = evaluation.compared[1]
    return comparison.measure == evaluation.measures[0] and (
        not best or best in (comparison.first, comparison.second)
    )
