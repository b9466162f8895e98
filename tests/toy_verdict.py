"""Whether every number in the sentences of a verdict is that of the metrics."""

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from qac_jax.artifacts import Artifact
from qac_jax.evaluation import results


GAIN = r"([+-]\d\.\d{3})(?: mrr@10)? \(p = ([\d.e-]+)\)"
FUSED = " + BM25"


def assert_true(
    summary: Mapping[str, Any], metrics: Artifact, index: Mapping[str, Any], own: str = ""
) -> None:
    """summary: summary.json. own: the run that is called as the index is."""
    rows, facts = results.read(metrics)
    names = {row["system"]: row["name"] for row in summary["rows"]}
    values = {names[row.name]: row.per_query for row in rows}
    tested = {
        frozenset((names[c["first"]], names[c["second"]])): c["randomization_holm"]
        for c in facts["comparisons"]
        if c["measure"] == "mrr@10"
    }
    text = " ".join(summary["verdict"])

    def mean(name: str, measure: str) -> float:
        return fmean(of[measure] for of in values[name].values())

    def said(pattern: str, at_most: int = 1) -> list[tuple[str, ...]]:
        """What is said in a pattern, which is then taken out of the text."""
        nonlocal text
        found = [match.groups() for match in re.finditer(pattern, text)]
        text = re.sub(pattern, "", text)
        assert len(found) <= at_most
        return found

    def gain(better: str, other: str, difference: str, p: str) -> None:
        assert difference == f"{mean(better, 'mrr@10') - mean(other, 'mrr@10'):+z.3f}"
        assert p == f"{tested[frozenset((better, other))]:.2g}"

    use = summary["use"]["name"]
    measured = names.get(own, use)
    index_place = r"(?: \([^)]*\))?"
    for name, first in said(rf"Use ([^(:]+){index_place}: it finds .* for (\d+) of 100 questions"):
        assert name == use and int(first) == round(100 * mean(measured, "hit@1"))
    for name, first in said(r", ([^,.]+) alone for (\d+)", 2):
        assert int(first) == round(100 * mean(name, "hit@1"))
    for *gains, name, start in said(
        rf"Training added (?:{GAIN} beside BM25 and )?{GAIN} alone \(([^)]+) against ([^)]+)\)\."
    ):
        gain(name, start, *gains[2:])
        if gains[0]:
            gain(name + FUSED, start + FUSED, *gains[:2])
    candidates = summary["choice"]["candidates"]
    choice = {names[c["name"].replace("valid_", "run_")]: c for c in candidates}
    for count, name, value, start, of_start, p, better, sure in said(
        r"on the ([\d,]+) questions that choose the model (.+?) has mrr@10 (\d\.\d{3}), (.+?) "
        r"(\d\.\d{3}) \(p = ([\d.e-]+)\); with what training gave elsewhere, (.+?) is better with "
        r"a probability of ([\d.]+)\."
    ):
        assert int(count.replace(",", "")) == summary["choice"]["questions"]
        assert (value, of_start) == tuple(f"{choice[n]['mean']:.3f}" for n in (name, start))
        assert p == f"{choice[name]['p']:.2g}"
        assert better == name and sure == f"{choice[name]['probability']:.2f}"
    for untrained, *gains in said(rf"; ([^,;]+), untrained, has {GAIN} and {GAIN}"):
        gain(untrained, "BM25", *gains[:2])
        gain(untrained, untrained.removesuffix(FUSED), *gains[2:])
    for difference, p, other in said(rf"{GAIN} against ([^:.]+?) alone", 2):
        gain(measured, other, difference, p)
    for weight, count in said(
        r"has the weight ([\d.]+) of 1, chosen by the ([\d,]+) \w+ questions"
    ):
        assert weight == f"{index['weight']:g}"
        assert int(count.replace(",", "")) == index["choice"]["questions"]
    for (count,) in said(r"([\d,]+) test questions", 2):
        assert int(count.replace(",", "")) == len(values["BM25"])
    for (share,) in said(r"best window of words is ([\d.]+) of"):
        assert float(share) == index["windows"]
    for known in (*names.values(), "of 100", summary["questions"]["test"]["makers"], "BM25"):
        text = text.replace(known, "").replace(known.capitalize(), "")
    assert not re.search(r"\d", re.sub(r"qac search --index \S+", "", text)), text
