"""A run on one's own documents in words: which retriever to use, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison, ModelChoice
from qac_jax.report.gathering import ALPHA


FIRST = "hit@1"
# What `qac extract` makes, by its method.
_EXTRACTED = {"bm25": "spans (QExt-BM25)", "title": "titles", "anchor": "anchors"}
# Fewer test questions than this say little.
_FEW = 100


@dataclasses.dataclass(frozen=True)
class Systems:
    """The runs of a recipe by their part in it; the start is the first of `alone`, `fused`."""

    bm25: str
    alone: tuple[str, ...]
    fused: tuple[str, ...] = ()

    def used(self, place: int, weight: float) -> str:
        """The run of the model at this place; with BM25's, unless its weight is 0; or BM25's."""
        if not weight or not self.fused:
            return self.alone[place]
        return self.fused[place] if weight < 1 else self.bm25


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where the questions of one part come from."""

    part: str
    count: int
    source: str
    generated: bool
    made_by: Sequence[Mapping[str, Any]] = ()
    removed: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def makers(self) -> str:
        """Who made them, in words."""
        parts = self.source.split(" and ")
        named = [f"people ({part})" for part in parts if ".tsv" in part]
        named += [part for part in parts if part.startswith("query log")]
        named += [
            _EXTRACTED.get(made.get("name", ""), made.get("name", "?")) for made in self.made_by
        ]
        return ", ".join(named)

    @property
    def filters(self) -> str:
        """Reasons for which questions were left out, with counts."""
        counts: dict[str, int] = dict(self.removed)
        for made in self.made_by:
            for reason, count in (made.get("filtered") or {}).items():
                counts[reason] = counts.get(reason, 0) + count
        return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items() if count)


def verdict(
    results: Sequence[Result],
    comparisons: Sequence[Comparison],
    choice: ModelChoice,
    systems: Systems,
    weight: float,
    windows: float,
    questions: Provenance,
    names: Mapping[str, str],
) -> list[str]:
    """Sentences: what to use and what it answers, how sure that is, and what it does not say."""
    by_name = {result.name: result for result in results}

    def called(name: str) -> str:
        return names.get(name, name)

    use = systems.used(choice.place, weight)
    others = [systems.alone[0], systems.bm25]
    sentences = [_first(by_name, use, others, called)]
    for other in others:
        if other != use and (sentence := _sure(comparisons, use, other, called)):
            sentences.append(sentence)
    sentences.append(_trained(choice, systems, called))
    if systems.fused:
        said = {0.0: "BM25 did not help", 1.0: "BM25 alone was best"}.get(weight)
        sentences.append(
            f"{said} on the same questions."
            if said
            else f"BM25 has the weight {weight:g} of 1 beside it, chosen by the same questions."
        )
    if windows and weight < 1 and systems.fused:
        sentences.append(
            f"Beside BM25 a passage's best window of words counts for {windows:g} of 1 and the "
            "whole passage for the rest; alone, only the whole passage counts."
        )
    sentences += _caution(questions)
    return sentences


def _first(by_name: Mapping[str, Result], use: str, others: Sequence[str], called: Any) -> str:
    """How many of 100 questions each answers first."""

    def share(name: str) -> str:
        return f"{100 * by_name[name].mean[FIRST]:.0f}"

    compared = "; ".join(
        f"{called(name)} alone for {share(name)}"
        for name in others
        if name != use and name in by_name
    )
    text = f"{_capital(called(use))} finds the answer first for {share(use)} of 100 questions"
    return f"{text}; {compared}. Use {called(use)}." if compared else f"{text}. Use it."


def _sure(comparisons: Sequence[Comparison], use: str, other: str, called: Any) -> str:
    """Whether the difference to another system is more than noise, by the first measure."""
    for c in comparisons:
        if {c.first, c.second} == {use, other}:
            difference = c.difference if c.second == use else -c.difference
            said = "is significant" if c.randomization_holm < ALPHA else "may be noise"
            return (
                f"Against {called(other)}: {difference:+.3f} {c.measure}, which {said} "
                f"(p = {c.randomization_holm:.2g})."
            )
    return ""


def _trained(choice: ModelChoice, systems: Systems, called: Any) -> str:
    """Whether training helped on the validation questions."""
    start, *trained = choice.candidates
    if not trained:
        return "Nothing was trained."
    asked, kept = f"the {choice.questions:,} validation questions", called(systems.alone[0])
    if choice.changed:
        chosen = choice.candidates[choice.place]
        return (
            f"On {asked} {called(systems.alone[choice.place])} has {choice.measure} "
            f"{chosen.mean:.3f} and {kept} {start.mean:.3f} (p = {chosen.p:.2g}), so it was chosen."
        )
    best = max(trained, key=lambda candidate: candidate.mean)
    place = choice.candidates.index(best)
    return (
        f"Training did not help on {asked} by more than noise ({called(systems.alone[place])}: "
        f"{choice.measure} {best.mean:.3f}, {kept}: {start.mean:.3f}), so {kept} is kept."
    )


def _caution(questions: Provenance) -> list[str]:
    sentences = []
    if questions.generated:
        sentences.append(
            f"Caution: the {questions.count:,} test questions were generated by {questions.makers} "
            "about passages kept aside. They compare systems; how often questions of people are "
            "answered they do not say. Add queries.jsonl and qrels/test.tsv to measure that."
        )
    if questions.count < _FEW:
        sentences.append(
            f"With {questions.count:,} test questions only large differences are more than noise."
        )
    return sentences


def opening(questions: Mapping[str, Provenance]) -> str:
    """The first line of a report: where the test questions come from, and what follows."""
    test = questions["test"]
    if test.generated:
        return (
            f"The {test.count:,} test questions were generated by {test.makers} about passages "
            "that were kept aside before anything was trained; no system filtered them. The "
            "figures compare the systems with one another."
        )
    return (
        f"The {test.count:,} test questions were asked and judged by people ({test.source}); "
        "nothing was trained on them or chosen by them. The figures are estimates for such "
        "questions."
    )


HEADER = ("questions for", "how many", "made by", "left out")


def rows(questions: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A line a part of the questions, as summary.json has them, under HEADER."""
    return [
        [name, f"{q['count']:,}", q["makers"], q["filters"] or "none"]
        for name, q in questions.items()
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
