"""Metrics and comparisons as tables in Markdown, which is read on a screen as well."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qac_jax.evaluation.benchmarks import QUESTIONS, Suite
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.evaluation.similarity import Similarity


ABSENT = "–"
COMPARED = (
    "difference",
    "measure",
    "mean",
    "won/lost/tied",
    "t-test p (Holm)",
    "randomis. p (Holm)",
)
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def unmarked(text: str) -> str:
    """Text in which nothing is HTML: names of folders and texts of others may try to be."""
    return _TAG.sub("&lt;", text)


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, with columns as wide as they must be."""
    lines = [[unmarked(str(c)).replace("|", "\\|") for c in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def measures(results: Iterable[Result]) -> list[str]:
    """All that some of them have, in order."""
    return list(dict.fromkeys(measure for result in results for measure in result.mean))


def figures(results: Sequence[Result], what: str = "run") -> str:
    """One line for each run or collection, one column for each measure."""
    names = measures(results)
    rows = [[r.name, *(number(r.mean.get(measure)) for measure in names)] for r in results]
    return markdown([what, *names], rows)


def evaluation(results: Sequence[Result], facts: Mapping[str, Any], what: str = "run") -> str:
    """The figures, and below them the comparisons among the facts."""
    text = figures(results, what)
    found = compared(Comparison(**comparison) for comparison in facts["comparisons"])
    return f"{text}\n\n{markdown(COMPARED, found)}" if found else text


def compared(comparisons: Iterable[Comparison]) -> list[list[str]]:
    """A line a comparison, under COMPARED: both tests, corrected by Holm."""
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


def similarities(measured: Mapping[str, Similarity]) -> str:
    """PAIR's similarities as Markdown, one encoder a line."""
    header = ["encoder", "queries", "s(p⁺, q)", "s(p⁺, p⁻)", "query nearer"]
    rows = [
        [name, f"{s.queries:,}", number(s.to_query), number(s.to_negatives), f"{s.nearer:.1%}"]
        for name, s in measured.items()
    ]
    return markdown(header, rows)


def suites(systems: Mapping[str, Suite]) -> str:
    """AugTriever's Table 6 transposed (a line a set), with the averages of Table 1.

    In percent; a dash where a set is missing, and for every average that needs it.
    """
    header = ["", *systems]
    columns = {name: system.columns() for name, system in systems.items()}
    summaries = {name: system.summary() for name, system in systems.items()}
    lines = [markdown(header, [*_lines(columns), *_lines(summaries)])]
    for name, system in systems.items():
        asked = [printed for key, printed in QUESTIONS.items() if key not in system.hits]
        missing = {"14 BEIR": system.missing(), "6 question": asked if system.hits else []}
        lines += [
            f"{name and f'{name}: '}{len(absent)} of the {of} sets are missing: {', '.join(absent)}"
            for of, absent in missing.items()
            if absent
        ]
    return "\n".join(lines)


def _lines(systems: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    names = next(iter(systems.values()))
    return [[name, *(percent(values[name]) for values in systems.values())] for name in names]


def number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4f}"


def percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f}"


def probability(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"
