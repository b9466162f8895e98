"""What a run came to, as one page that needs nothing else, and as a Markdown table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.progress import human, human_seconds
from qac_jax.report import page, plots
from qac_jax.report.tables import ABSENT, number, probability


ALPHA = 0.05
MARKS = "abcdefghijklmnopqrstuvwxyz"
# Plots with more outlines than this are not read any more.
_MOST = 5


@dataclasses.dataclass(frozen=True)
class Case:
    """A question that one system answers better than another."""

    question: str
    values: tuple[float, float]
    relevant: tuple[str, ...] = ()
    first: str = ""  # what the first system put on top, as text
    second: str = ""


@dataclasses.dataclass(frozen=True)
class Test:
    """Systems measured on the same questions."""

    name: str
    results: Sequence[Result]
    comparisons: Sequence[Comparison] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compared: tuple[str, str] = ("", "")
    wins: Sequence[Case] = ()
    losses: Sequence[Case] = ()
    scores: Sequence[tuple[str, Sequence[float]]] = ()  # of the best system: relevant, others

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(m for result in self.results for m in result.mean))

    def better_than(self, measure: str) -> dict[str, str]:
        """System -> the letters of those that it beats beyond doubt (randomisation test, Holm)."""
        letters = dict(zip((r.name for r in self.results), MARKS, strict=False))
        found: dict[str, set[str]] = {result.name: set() for result in self.results}
        for c in self.comparisons:
            if c.measure == measure and c.randomization_holm < ALPHA and c.difference:
                pair = (c.second, c.first) if c.difference > 0 else (c.first, c.second)
                found[pair[0]].add(letters.get(pair[1], ""))
        return {name: "".join(sorted(marks)) for name, marks in found.items()}


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
    tests: Sequence[Test] = ()
    curves: Mapping[str, Sequence[Mapping[str, float]]] = dataclasses.field(default_factory=dict)
    indexes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    stages: Sequence[StageRow] = ()
    gin: str = ""
    heatmap: str = ""  # systems by collections, as SVG


def html(content: Content) -> str:
    """The page."""
    sections = [
        ("Figures", "".join(map(_test, content.tests))),
        ("Heat map", _heatmap(content.heatmap)),
        ("Wins and losses", "".join(map(_cases, content.tests))),
        ("Distributions", "".join(map(_distributions, content.tests))),
        ("Training", "".join(_curves(name, c) for name, c in content.curves.items())),
        ("Index", "".join(_index(name, found) for name, found in content.indexes.items())),
        ("Samples", "".join(_samples(name, found) for name, found in content.samples.items())),
        ("Time and memory", _stages(content.stages)),
        ("Configuration", _configuration(content)),
    ]
    return page.page(content.title, [(name, body) for name, body in sections if body])


def markdown(content: Content) -> str:
    """The figures and their comparisons, for a README or an issue."""
    parts = [f"# {content.title}"]
    for test in content.tests:
        header, rows = _figures(test)
        parts += [f"## {test.name}", _markdown_table(header, rows), _legend(test)]
        if chosen := [c for c in test.comparisons if _is_telling(c, test)]:
            parts.append(_markdown_table(_COMPARED, _compared(chosen)))
    return "\n\n".join(part for part in parts if part) + "\n"


_COMPARED = (
    "difference",
    "measure",
    "mean",
    "won/lost/tied",
    "t-test p (Holm)",
    "randomis. p (Holm)",
)


def _is_telling(comparison: Comparison, test: Test) -> bool:
    """Those of the best system, by the first measure: of twelve systems there are hundreds."""
    pair = (comparison.first, comparison.second)
    return comparison.measure == test.measures[0] and (
        not test.compared[1] or test.compared[1] in pair
    )


def _figures(test: Test) -> tuple[list[str], list[list[str]]]:
    """A line a system: its letter, name, and figures with the letters of those that it beats."""
    marks = {measure: test.better_than(measure) for measure in test.measures}
    best = {m: max((r.mean.get(m, -1.0) for r in test.results), default=0.0) for m in test.measures}
    rows = []
    for letter, result in zip(MARKS, test.results, strict=False):
        row = [letter, result.name]
        for measure in test.measures:
            value = result.mean.get(measure)
            told = number(value)
            if value is not None and value == best[measure] and len(test.results) > 1:
                told = f"**{told}**"
            row.append(told + (f" ^{m}" if (m := marks[measure][result.name]) else ""))
        rows.append(row)
    return ["", "system", *test.measures], rows


def _legend(test: Test) -> str:
    questions = max((result.queries for result in test.results), default=0)
    told = f"{questions:,} questions"
    if protocol := test.facts.get("protocol"):
        told += f", protocol {protocol}"
    if test.comparisons:
        told += f"; letters: better than those systems, p < {ALPHA} (randomisation test, Holm)"
    return told + "."


def _compared(found: Iterable[Comparison]) -> list[list[str]]:
    return [
        [
            f"{c.second} − {c.first}",
            c.measure,
            f"{c.difference:+.4f}",
            f"{c.wins}/{c.losses}/{c.ties}",
            f"{probability(c.t_test)} ({probability(c.t_test_holm)})",
            f"{probability(c.randomization)} ({probability(c.randomization_holm)})",
        ]
        for c in found
    ]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def _test(test: Test) -> str:
    header, rows = _figures(test)
    body = page.table(header, rows, rich=True) + page.note(_legend(test))
    if test.comparisons:
        compared = page.table(_COMPARED, _compared(test.comparisons))
        body += page.folded(f"All {len(test.comparisons)} comparisons", compared)
    return page.part(test.name, body)


def _heatmap(drawn: str) -> str:
    if not drawn:
        return ""
    told = (
        "nDCG@10; the darker, the better in its column. A group has a figure where all members do."
    )
    return page.note(told) + f'<div class="scroll">{drawn}</div>'


def _cases(test: Test) -> str:
    if not (test.wins or test.losses):
        return ""
    first, second = test.compared
    body = page.note(f"{second} against {first}, {test.measures[0]}: the largest differences.")
    for title, cases in (("Won", test.wins), ("Lost", test.losses)):
        shown = "".join(_case(case, first, second) for case in cases)
        body += f"<h4>{title}</h4>{shown or page.note('none')}"
    return page.part(test.name, body)


def _case(case: Case, first: str, second: str) -> str:
    rows = [
        (f"{second}: {case.values[1]:.2f}", case.second),
        (f"{first}: {case.values[0]:.2f}", case.first),
    ]
    if case.relevant:
        rows.append(("relevant", ", ".join(case.relevant)))
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text) or ABSENT}</dd>" for name, text in rows
    )
    return f'<div class="case"><p>{escape(case.question)}</p><dl>{listed}</dl></div>'


def _distributions(test: Test) -> str:
    if not test.results or not test.measures:
        return ""
    measure = test.measures[0]
    chosen = list(test.results)[-_MOST:]
    groups = [(r.name, list(r.values(measure).values())) for r in chosen if r.per_query]
    drawn = plots.histogram(groups, f"{measure} of a question", bins=10)
    if test.scores:
        drawn += plots.histogram(test.scores, f"score by {test.compared[1] or chosen[-1].name}")
    return page.part(test.name, page.side_by_side(drawn)) if drawn else ""


def _curves(name: str, rows: Sequence[Mapping[str, float]]) -> str:
    """One plot for each figure, the validation's line in that of the same name."""
    speed = ("step_ms", "examples_per_second", "tokens_per_second", "skipped")
    names = list(dict.fromkeys(key for row in rows for key in row if key != "step"))
    shown = [n for n in names if "/" not in n and n not in speed]
    shown.sort(key=lambda n: (n != "loss", n in ("grad_norm", "learning_rate")))
    shown += [n for n in names if "/" in n and n.rsplit("/", 1)[1] not in shown]
    drawn = ""
    for figure in shown:
        lines = [_line(rows, figure, "training"), _line(rows, f"validation/{figure}", "validation")]
        drawn += plots.lines([line for line in lines if line.x], "step", figure.replace("_", " "))
    return page.part(name, page.side_by_side(drawn)) if drawn else ""


def _line(rows: Sequence[Mapping[str, float]], figure: str, name: str) -> plots.Series:
    points = [(row["step"], row[figure]) for row in rows if figure in row]
    return plots.Series(name, [x for x, _ in points], [y for _, y in points])


def _index(name: str, tuned: Mapping[str, Any]) -> str:
    """Recall against speed of all efforts that tuning measured."""
    points = sorted(tuned["curve"], key=lambda point: point["queries_per_second"])
    chosen = tuned["chosen"]
    curve = [(1000 / p["queries_per_second"], p["recall"]) for p in _front(points)]
    measured = [(1000 / p["queries_per_second"], p["recall"]) for p in points]
    series = [
        plots.Series("best for the time", *map(list, zip(*curve, strict=True))),
        plots.Series("chosen", [1000 / chosen["queries_per_second"]], [chosen["recall"]]),
    ]
    drawn = plots.lines(
        series, "milliseconds a query", f"recall@{tuned['k']}", log_x=True, dots=True
    )
    told = (
        f"{len(measured)} efforts measured on {tuned['queries']:,} queries; chosen: "
        f"{chosen['leaves']} leaves, {chosen['reorder']} candidates, recall@{tuned['k']} "
        f"{chosen['recall']:.4f} (on other queries {tuned['held_out_recall']:.4f}, asked for "
        f"{tuned['target']}), {human(chosen['queries_per_second'])} queries/s."
    )
    return page.part(name, page.side_by_side(drawn) + page.note(told))


def _front(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that nothing faster beats, the slowest first."""
    kept: list[Mapping[str, Any]] = []
    for point in reversed(points):
        if not kept or point["recall"] > kept[-1]["recall"]:
            kept.append(point)
    return kept[::-1]


def _samples(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    shown = ""
    for record in records:
        items = "".join(
            f"<li>{escape(context['text'])} <small>{escape(str(context.get('origin', '')))}"
            + (f" {context['score']:.3g}" if isinstance(context.get("score"), float) else "")
            + "</small></li>"
            for context in record["contexts"]
        )
        title = escape(record.get("title") or record["_id"])
        text = escape(record.get("text", ""))
        shown += (
            f'<div class="case"><p>{title}</p><blockquote>{text}</blockquote><ul>{items}</ul></div>'
        )
    return page.part(name, shown) if shown else ""


def _stages(stages: Sequence[StageRow]) -> str:
    if not stages:
        return ""
    timed = [(s.name, s.seconds or 0.0, human_seconds(s.seconds or 0.0)) for s in stages]
    rows = [
        [
            s.name,
            s.verb,
            f"{s.count:,}",
            human_seconds(s.seconds) if s.seconds is not None else ABSENT,
            human(s.memory, "B") if s.memory else ABSENT,
            s.identity[:12],
        ]
        for s in stages
    ]
    total = sum(s.seconds or 0.0 for s in stages)
    header = ["stage", "verb", "items", "time", "peak memory", "identity"]
    told = page.note(f"{human_seconds(total)} in all. Memory is that of the process until then.")
    return (
        page.side_by_side(plots.bars(timed, "time of each stage")) + page.table(header, rows) + told
    )


def _configuration(content: Content) -> str:
    body = ""
    for stage in content.stages:
        text = json.dumps(stage.settings, indent=1, ensure_ascii=False)
        body += page.folded(f"{stage.name} ({stage.verb})", f"<pre>{escape(text)}</pre>")
    if content.gin:
        body += page.folded("gin, as it was in force", f"<pre>{escape(content.gin)}</pre>")
    return body
