"""A run on one's own documents in words: which retriever to use, and how sure that is."""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation.results import Result
from qac_jax.evaluation.significance import Comparison
from qac_jax.queries.splitting import PARTS


FIRST = "hit@1"
# What `qac extract` makes, by its method.
_EXTRACTED = {"bm25": "spans (QExt-BM25)", "title": "titles", "anchor": "anchors"}
# Fewer test questions than this say little.
_FEW = 100


@dataclasses.dataclass(frozen=True)
class Systems:
    """The runs of a recipe; the start is the first of `alone` and of `fused`."""

    bm25: str
    alone: Sequence[str]
    fused: Sequence[str] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # to show
    weight: float = 0.0  # of BM25 beside the chosen model
    windows: float = 0.0  # share of a passage's best window beside BM25
    weighed: int = 0  # questions that chose the weight
    index: str = ""  # where the chosen model is with BM25
    own: str = ""  # the index's run, where the test questions are its user's and chose it

    def like(self, place: int) -> str:
        """The run of the model at this place; with BM25's, unless its weight is 0; or BM25's."""
        if not self.weight or not self.fused:
            return self.alone[place]
        return self.fused[place] if self.weight < 1 else self.bm25

    def called(self, name: str) -> str:
        return self.names.get(name, name)


def provenance(info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each part of the questions of `qac step collect`, whose facts these are: where it comes from
    and what was left out."""
    found = {}
    for part in (part for part in reversed(PARTS) if part in info):
        source, removed = info[part]["from"], info[part].get("removed", {})
        made = info.get("made_by", {}).get(part, ())
        makers = [f"people ({one})" for one in source.split(" and ") if ".tsv" in one]
        makers += [one for one in source.split(" and ") if one.startswith("query log")]
        makers += [_EXTRACTED.get(by.get("name", "?"), by.get("name", "?")) for by in made]
        filtered = sum((Counter(by.get("filtered") or {}) for by in made), Counter(removed))
        found[part] = {
            "part": part,
            "count": info[part]["queries"],
            "source": source,
            "generated": part in info.get("made_by", {}) and ".tsv" not in source,
            "made_by": made,
            "removed": removed,
            "makers": ", ".join(makers),
            "filters": ", ".join(f"{why}: {count:,}" for why, count in filtered.items()),
        }
    return found


@dataclasses.dataclass(frozen=True)
class _Said:
    """What sentences are made of."""

    means: Mapping[str, Mapping[str, float]]
    comparisons: Sequence[Comparison]
    choice: Mapping[str, Any]
    systems: Systems

    def gain(self, better: str, other: str, measure: str = "") -> str:
        """One run against another on the first measure: +0.031 mrr@10 (p = 0.002)."""
        for c in self.comparisons:
            if {c.first, c.second} == {better, other} and c.measure == self.comparisons[0].measure:
                difference = c.difference if c.second == better else -c.difference
                return f"{difference:+z.3f}{measure} (p = {c.randomization_holm:.2g})"
        raise UserError(f"{better} and {other} were not compared; evaluate their runs together")

    @property
    def measure(self) -> str:
        return f" {self.comparisons[0].measure}"

    def use(self) -> str:
        systems, place = self.systems, self.choice["place"]
        like = systems.like(place)
        others = [name for name in (systems.bm25, systems.alone[0]) if name != like]
        first = {name: f"{100 * self.means[name][FIRST]:.0f}" for name in self.means}
        beside = "".join(f", {systems.called(name)} alone for {first[name]}" for name in others)
        where = f" ({systems.index})" if systems.index else ""
        return (
            f"Use {systems.called(like)}{where}: it finds the answer first for "
            f"{first[systems.own or like]} of 100 questions{beside}."
        )

    def training(self) -> list[str]:
        """What it added, like with like, and why it was kept or not."""
        systems, candidates = self.systems, self.choice["candidates"]
        if len(candidates) == 1:
            return ["Nothing was trained."]
        means = [candidate["mean"] for candidate in candidates]
        best = self.choice["place"] or max(range(1, len(means)), key=lambda place: means[place])
        trained, start = (systems.called(systems.alone[place]) for place in (best, 0))
        added = f"{self.gain(systems.alone[best], systems.alone[0], self.measure)} alone"
        if systems.fused:
            beside = self.gain(systems.fused[best], systems.fused[0], self.measure)
            added = f"{beside} beside BM25 and {added}"
        kept = "was kept" if self.choice["place"] else f"was not kept, so {start} is used"
        return [
            f"Training added {added} ({trained} against {start}).",
            f"It {kept}: on the {self.choice['questions']:,} questions that choose the model "
            f"{trained} has {self.choice['measure']} {means[best]:.3f}, {start} {means[0]:.3f} "
            f"(p = {candidates[best]['p']:.2g}); with what training gave elsewhere, {trained} is "
            f"better with a probability of {candidates[best]['probability']:.2f}.",
        ]

    def fusion(self) -> list[str]:
        """What the recommended index has over BM25 alone and the start alone, and who made that."""
        systems, place = self.systems, self.choice["place"]
        like, start = systems.like(place), systems.alone[0]
        used, untrained = systems.own or like, systems.fused[0] if systems.fused else ""
        gains = [
            f"{self.gain(used, other, self.measure)} against {systems.called(other)} alone"
            for other in (systems.bm25, start)
            if like not in (other, *(systems.alone if other == start else ()))
        ]
        if not gains:
            return []
        sentence = f"{systems.called(like)} has {' and '.join(gains)}"
        if like in systems.fused:
            sentence += ": that is fusion"
            if untrained != like:
                has = " and ".join(self.gain(untrained, other) for other in (systems.bm25, start))
                sentence += f" and training; {systems.called(untrained)}, untrained, has {has}"
        return [f"{sentence[:1].upper()}{sentence[1:]}."]

    def weight(self) -> list[str]:
        systems = self.systems
        if not systems.fused:
            return []
        windows = f"; a passage's best window of words is {systems.windows:g} of its vectors' score"
        return [
            f"BM25 has the weight {systems.weight:g} of 1, chosen by the {systems.weighed:,} "
            f"{'test' if systems.own else 'validation'} questions"
            f"{windows if systems.windows and systems.weight < 1 else ''}."
        ]


def verdict(
    results: Sequence[Result],
    comparisons: Sequence[Comparison],
    choice: Mapping[str, Any],
    systems: Systems,
    questions: Mapping[str, Any],
) -> list[str]:
    """Sentences: whose questions these are, what to use, what training and fusion add to it.

    choice: a ModelChoice as JSON. questions: the provenance of the test questions.
    """
    said = _Said({r.name: r.mean for r in results}, comparisons, choice, systems)
    sentences = [_asked(questions, systems), said.use(), *said.training(), *said.fusion()]
    sentences += said.weight()
    if questions["count"] < _FEW:
        sentences.append(
            f"With {questions['count']:,} test questions only large differences are more than "
            "noise."
        )
    if systems.index:
        sentences.append(
            f'Ask ten questions of your own: qac search --index {shlex.quote(systems.index)} "…"'
            + "; qac run own_corpus --questions FILE measures and chooses by them."
            * questions["generated"]
        )
    return sentences


def _asked(test: Mapping[str, Any], systems: Systems) -> str:
    """Where the test questions come from, and what follows."""
    asked = f"the {test['count']:,} test questions were"
    if test["generated"]:
        return (
            f"Caution: {asked} generated by {test['makers']} about passages kept aside, so the "
            "figures compare systems and do not say how often questions of people are answered."
        )
    asked = f"{asked.capitalize()} asked and judged by people ({test['source']}); "
    if systems.own:
        return (
            f"{asked}nothing was trained on them, but they chose BM25's weight in the index and "
            f"helped to choose its model, so the index is measured somewhat too well, and all "
            "else as it is."
        )
    return f"{asked}nothing was trained on them or chosen by them."


HEADER = ("questions for", "how many", "made by", "left out")


def rows(questions: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A line a part of the questions, as summary.json has them, under HEADER."""
    return [
        [name, f"{q['count']:,}", q["makers"], q["filters"] or "none"]
        for name, q in questions.items()
    ]
