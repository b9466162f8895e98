"""A report as one HTML page (a template in assets/report) and as Markdown."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

import qac_jax
from qac_jax.progress import human, human_seconds
from qac_jax.report import plots, tables, verdict
from qac_jax.report.gathering import ALPHA, LETTERS, Content, Evaluation
from qac_jax.report.tables import ABSENT, number


_ASSETS = Path(qac_jax.__file__).parent / "assets" / "report"
# Metrics of a training whose curves say nothing of the model.
_SPEED = ("step_ms", "examples_per_second", "tokens_per_second", "skipped")

# Words of tables, explained below them: measures (@10: of the first ten passages), and systems.
_MEASURES = {
    "mrr": "the mean of 1 / rank of the first passage that answers",
    "hit": "the share of questions with such a passage among the first",
    "ndcg": "gain by rank, of the best possible",
    "recall": "the share of such passages found among the first",
    "map": "the mean precision at the ranks of such passages",
}
_SYSTEMS = {
    "the start": "the encoder before training",
    "retriever 1": "after the first round of training",
    "retriever 2": "after the second",
    "+ BM25": "scores of meaning and of words, joined",
    "the index": "what the run recommends",
}


class Listing(NamedTuple):
    """A header and rows of cells; `**best**` and ` ^marks` in cells are shown as such."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def html(content: Content) -> str:
    """A page that stands alone: no scripts, no fonts, no network; light, dark, narrow, paper."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["rich"] = _rich
    questions = content.conclusion["questions"] if content.conclusion else {}
    seconds = {name: a.info.get("seconds") or 0.0 for name, a in content.stages.items()}
    environment.filters["anchor"] = lambda name: re.sub(r"\W+", "-", name.lower())
    return environment.get_template("page.html").render(
        title=content.title,
        style=Markup((_ASSETS / "page.css").read_text(encoding="utf-8")),
        conclusion=content.conclusion,
        questions=Listing(verdict.HEADER, verdict.rows(questions)),
        evaluations=[
            {
                "name": e.name,
                "table": metrics(e),
                "legend": legend(e),
                "comparisons": Listing(tables.COMPARED, tables.compared(e.comparisons)),
                "compared": e.compared,
                "measure": e.measures[0] if e.measures else "",
                "cases": e.cases,
            }
            for e in content.evaluations
        ],
        curves={name: _curves(rows) for name, rows in content.curves.items()},
        samples=content.samples,
        stages=_stages(content),
        total=human_seconds(sum(seconds.values())),
        gin=content.gin,
        ABSENT=ABSENT,
    )


def _rich(cell: str) -> Markup:
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(cell)))
    return Markup(re.sub(r" \^(\w+)$", r"<sup>\1</sup>", text))


def _curves(rows: Sequence[Mapping[str, float]]) -> list[Markup]:
    """A plot a metric; the validation's line is in that of the same name."""
    names = dict.fromkeys(key.rpartition("/")[2] for row in rows for key in row)
    shown = [name for name in names if name not in ("step", *_SPEED)]
    shown.sort(key=lambda name: (name != "loss", name in ("grad_norm", "learning_rate")))
    drawn = []
    for metric in shown:
        series = []
        for key, name in ((metric, "training"), (f"validation/{metric}", "validation")):
            points = [(row["step"], row[key]) for row in rows if key in row]
            if len(points) < 2:  # a dot
                continue
            series.append(plots.Series(name, [x for x, _ in points], [y for _, y in points]))
        if series:
            drawn.append(plots.lines(series, "step", metric.replace("_", " ")))
    return [Markup(plot) for plot in drawn if plot is not None]


def _stages(content: Content) -> Listing:
    rows = []
    for name, a in content.stages.items():
        seconds, memory = a.info.get("seconds"), a.info.get("peak_resident_bytes")
        time = ABSENT if seconds is None else human_seconds(seconds)
        used = human(memory, "B") if memory else ABSENT
        rows.append([name, a.stage, f"{a.count:,}", time, used, a.identity[:12]])
    return Listing(("stage", "verb", "items", "time", "peak memory", "identity"), rows)


def metrics(evaluation: Evaluation) -> Listing:
    """A line a system: its letter, name, and metrics with the letters of those that it beats.

    A line a collection: its name and metrics, which are not compared with other collections'.
    """
    results, measures = evaluation.results, evaluation.measures
    if evaluation.of_collections:
        plain = [[r.name, *(number(r.mean.get(measure)) for measure in measures)] for r in results]
        return Listing(["collection", *measures], plain)
    marks = {measure: evaluation.better_than(measure) for measure in measures}
    best = {m: max((r.mean.get(m, -1.0) for r in results), default=0.0) for m in measures}
    rows = []
    for letter, result in zip(LETTERS, results, strict=False):
        row = [letter, result.name]
        for measure in measures:
            text = number(result.mean.get(measure))
            if result.mean.get(measure) == best[measure] and len(results) > 1:
                text = f"**{text}**"
            row.append(text + (f" ^{m}" if (m := marks[measure][result.name]) else ""))
        rows.append(row)
    return Listing(["", "system", *measures], rows)


def legend(evaluation: Evaluation) -> str:
    """How many questions a table is about, and what its letters mean."""
    counts = [result.queries for result in evaluation.results]
    if evaluation.of_collections:
        text = f"{sum(counts):,} questions on {len(counts)} collections"
    else:
        text = f"{max(counts, default=0):,} questions"
    if (protocol := evaluation.facts.get("protocol") or "own") != "own":
        text += f", counted as {protocol} does"
    if evaluation.comparisons:
        text += f"; letters: better than those systems, p < {ALPHA} (randomisation test, Holm)"
    names = {name.partition("@")[0] for name in evaluation.measures}
    systems = " / ".join(result.name for result in evaluation.results)
    meant = [f"{word}: {what}" for word, what in _MEASURES.items() if word in names]
    meant += [f"{word}: {what}" for word, what in _SYSTEMS.items() if word in systems]
    return ". ".join([text, *meant]) + "."


def markdown(content: Content) -> str:
    """The report as far as it is tables, for a README or an issue."""
    parts = [f"# {content.title}"]
    if (conclusion := content.conclusion) is not None:
        listed = tables.markdown(verdict.HEADER, verdict.rows(conclusion["questions"]))
        parts += [*conclusion["verdict"], "## Questions", listed]
    for evaluation in content.evaluations:
        table = metrics(evaluation)
        shown = tables.markdown(table.header, table.rows)
        parts += [f"## {evaluation.name}", shown, legend(evaluation)]
        best = evaluation.compared[1]  # twelve systems have hundreds of comparisons
        if chosen := [
            c
            for c in evaluation.comparisons
            if c.measure == evaluation.measures[0] and (not best or best in (c.first, c.second))
        ]:
            parts.append(tables.markdown(tables.COMPARED, tables.compared(chosen)))
    return tables.unmarked("\n\n".join(parts)) + "\n"
