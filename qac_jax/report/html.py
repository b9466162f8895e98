"""A report as one HTML page: metrics, examples, plots, samples, time, memory and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.progress import human, human_seconds
from qac_jax.report import markdown, page, plots, verdict
from qac_jax.report.content import Case, Content, Evaluation, StageRow
from qac_jax.report.heatmap import Heatmap
from qac_jax.report.markup import Markup, element, join
from qac_jax.report.tables import ABSENT


# A histogram with more outlines than this cannot be read.
_MAX_OUTLINES = 5


def html(content: Content) -> str:
    """The page; sections without content are left out."""
    sections = [
        ("Verdict", _verdict(content.conclusion)),
        ("Figures", page.beside(map(_metrics, content.evaluations))),
        ("Heat map", _heatmap(content.heatmap)),
        ("Wins and losses", join(map(_cases, content.evaluations))),
        ("Distributions", join(map(_distributions, content.evaluations))),
        ("Training", join(_curves(name, c) for name, c in content.curves.items())),
        ("Index", join(_index(name, tuned) for name, tuned in content.indexes.items())),
        ("Samples", join(_samples(name, records) for name, records in content.samples.items())),
        ("Time and memory", _stages(content.stages)),
        ("Configuration", _configuration(content)),
    ]
    return page.page(content.title, [(name, body) for name, body in sections if body])


def _verdict(conclusion: Mapping[str, Any] | None) -> Markup:
    """Where the questions come from and what follows, then a table of all of them."""
    if conclusion is None:
        return Markup()
    lines = [element("p", text) for text in conclusion["verdict"]]
    listed = page.table(verdict.HEADER, verdict.rows(conclusion["questions"]))
    return join([page.note(conclusion["opening"]), *lines, page.part("Questions", listed)])


def _metrics(evaluation: Evaluation) -> Markup:
    header, rows = markdown.metrics(evaluation)
    body = [page.table(header, rows, rich=True), page.note(markdown.legend(evaluation))]
    if evaluation.comparisons:
        compared = page.table(markdown.COMPARED, markdown.compared(evaluation.comparisons))
        body.append(page.folded(f"All {len(evaluation.comparisons)} comparisons", compared))
    return element("div", page.part(evaluation.name, *body))


def _heatmap(heatmap: Heatmap | None) -> Markup:
    if heatmap is None:
        return Markup()
    explained = page.note(
        "nDCG@10; the stronger the colour, the better in its column. A group has a value where all "
        "its members have one."
    )
    return join([explained, page.scroll(heatmap.drawing().figure())])


def _cases(evaluation: Evaluation) -> Markup:
    if not (evaluation.wins or evaluation.losses):
        return Markup()
    first, second = evaluation.compared
    measure = evaluation.measures[0]
    body = [page.note(f"{second} against {first}, {measure}: the largest differences.")]
    for title, cases in (("Won", evaluation.wins), ("Lost", evaluation.losses)):
        body.append(element("h4", title))
        body += [_case(case, first, second) for case in cases] or [page.note("none")]
    return page.part(evaluation.name, *body)


def _case(case: Case, first: str, second: str) -> Markup:
    rows = [
        (f"{second}: {case.values[1]:.2f}", case.second),
        (f"{first}: {case.values[0]:.2f}", case.first),
    ]
    if case.relevant:
        rows.append(("relevant", ", ".join(case.relevant)))
    listed = (join([element("dt", name), element("dd", text or ABSENT)]) for name, text in rows)
    return page.case(case.question, element("dl", *listed))


def _distributions(evaluation: Evaluation) -> Markup:
    if evaluation.of_collections or not (evaluation.results and evaluation.measures):
        return Markup()
    measure = evaluation.measures[0]
    chosen = list(evaluation.results)[-_MAX_OUTLINES:]
    groups = [(r.name, list(r.values(measure).values())) for r in chosen if r.per_query]
    best = evaluation.compared[1] or chosen[-1].name
    drawn = page.side_by_side(
        [
            plots.histogram(groups, f"{measure} of a question", bins=10),
            plots.histogram(evaluation.scores, f"score by {best}"),
        ]
    )
    return page.part(evaluation.name, drawn) if drawn else Markup()


def _curves(name: str, rows: Sequence[Mapping[str, float]]) -> Markup:
    """A plot a metric; the validation's line is in that of the same name."""
    speed = ("step_ms", "examples_per_second", "tokens_per_second", "skipped")
    names = list(dict.fromkeys(key for row in rows for key in row if key != "step"))
    shown = [n for n in names if "/" not in n and n not in speed]
    shown.sort(key=lambda n: (n != "loss", n in ("grad_norm", "learning_rate")))
    shown += [n for n in names if "/" in n and n.rsplit("/", 1)[1] not in shown]
    drawings = []
    for metric in shown:
        lines = [_line(rows, metric, "training"), _line(rows, f"validation/{metric}", "validation")]
        drawings.append(
            plots.lines([line for line in lines if line.x], "step", metric.replace("_", " "))
        )
    drawn = page.side_by_side(drawings)
    return page.part(name, drawn) if drawn else Markup()


def _line(rows: Sequence[Mapping[str, float]], metric: str, name: str) -> plots.Series:
    points = [(row["step"], row[metric]) for row in rows if metric in row]
    return plots.Series(name, [x for x, _ in points], [y for _, y in points])


def _index(name: str, tuned: Mapping[str, Any]) -> Markup:
    """Recall against speed of all settings that tuning measured."""
    points = sorted(tuned["curve"], key=lambda point: point["queries_per_second"])
    chosen = tuned["chosen"]
    curve = [(1000 / p["queries_per_second"], p["recall"]) for p in _front(points)]
    series = [
        plots.Series("best for the time", *map(list, zip(*curve, strict=True))),
        plots.Series("chosen", [1000 / chosen["queries_per_second"]], [chosen["recall"]]),
    ]
    drawing = plots.lines(
        series, "milliseconds a query", f"recall@{tuned['k']}", log_x=True, dots=True
    )
    explained = page.note(
        f"{len(points)} settings measured on {tuned['queries']:,} queries; chosen: "
        f"{chosen['leaves']} leaves, {chosen['reorder']} candidates, recall@{tuned['k']} "
        f"{chosen['recall']:.4f} (on other queries {tuned['held_out_recall']:.4f}, target "
        f"{tuned['target']}), {human(chosen['queries_per_second'])} queries/s."
    )
    return page.part(name, page.side_by_side([drawing]), explained)


def _front(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those with a higher recall than all faster ones, the slowest first."""
    kept: list[Mapping[str, Any]] = []
    for point in reversed(points):
        if not kept or point["recall"] > kept[-1]["recall"]:
            kept.append(point)
    return kept[::-1]


def _samples(name: str, records: Sequence[Mapping[str, Any]]) -> Markup:
    if not records:
        return Markup()
    return page.part(name, *map(_sample, records))


def _sample(record: Mapping[str, Any]) -> Markup:
    """A passage and its contexts."""
    items = []
    for context in record["contexts"]:
        source = str(context.get("origin", ""))
        if isinstance(context.get("score"), float):
            source += f" {context['score']:.3g}"
        items.append(element("li", f"{context['text']} ", element("small", source)))
    passage = element("blockquote", record.get("text", ""))
    return page.case(record.get("title") or record["_id"], passage, element("ul", *items))


def _stages(stages: Sequence[StageRow]) -> Markup:
    if not stages:
        return Markup()
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
    return join(
        [
            page.side_by_side([plots.bars(timed, "time of each stage")]),
            page.table(["stage", "verb", "items", "time", "peak memory", "identity"], rows),
            page.note(
                f"{human_seconds(total)} in all. Peak memory is that of the process until the "
                "stage's end."
            ),
        ]
    )


def _configuration(content: Content) -> Markup:
    parts = []
    for stage in content.stages:
        settings = json.dumps(stage.settings, indent=1, ensure_ascii=False)
        parts.append(page.folded(f"{stage.name} ({stage.verb})", element("pre", settings)))
    if content.gin:
        parts.append(page.folded("gin, as it was in force", element("pre", content.gin)))
    return join(parts)
