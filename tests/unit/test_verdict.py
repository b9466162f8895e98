"""Which retriever is used, and what the verdict says of it."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_verdict import assert_true

from qac_jax import artifacts
from qac_jax.evaluation import results, significance
from qac_jax.evaluation.results import Result
from qac_jax.pipeline.stage import execute
from qac_jax.stages.choose import Conclude


NAMES = {"run_bm25": "BM25"} | {
    f"{kind}_{name}": system + more
    for kind, more in (("run", ""), ("fused", " + BM25"))
    for name, system in (("start", "the start"), ("1", "retriever 1"))
}
JUDGED = {"test": {"from": "qrels/test.tsv", "queries": 200}}
MADE = {
    "test": {"from": "text2query", "queries": 40},
    "made_by": {"test": [{"verb": "generate", "name": "qgen", "filtered": {"odd": 3}}]},
}


def result(name: str, ranks: Any) -> Result:
    """Reciprocal ranks and first places, question by question."""
    per_query = {
        str(n): {"mrr@10": 1.0 / rank, "hit@1": float(rank == 1)} for n, rank in enumerate(ranks)
    }
    means = {m: float(np.mean([v[m] for v in per_query.values()])) for m in ("mrr@10", "hit@1")}
    return Result(name, means, per_query, len(per_query))


def chosen(ranks: Any) -> significance.ModelChoice:
    start = result("valid_start", [2] * len(ranks))
    return significance.choose([start, result("valid_1", ranks)], "mrr@10")


def test_training_is_kept_unless_the_questions_speak_against_it() -> None:
    better = chosen([1] * 30 + [2] * 10)
    assert (better.chosen, better.place) == ("valid_1", 1)
    assert better.candidates[1].probability > 0.99
    slightly_worse = [2] * 190 + [3] * 10  # by 0.008
    for ranks in ([1] * 2 + [2] * 38, [2] * 40, slightly_worse):
        assert chosen(ranks).chosen == "valid_1"
    worse = chosen([3] * 40)
    assert worse.chosen == "valid_start" and worse.candidates[1].probability < 0.1
    # Questions of people are believed as they are.
    start = result("start", [2] * 200)
    one = result("one", slightly_worse)
    asked = significance.choose([start, one], "mrr@10", people=start.per_query)
    assert asked.chosen == "start"
    # Some of them among generated ones say as much as alone, beside what these say.
    mixed = [2] * 182 + [3] * 18
    places = {str(n) for n in range(160, 200)}
    some = [start, result("one", mixed)]
    assert significance.choose(some, "mrr@10").chosen == "one"
    assert significance.choose(some, "mrr@10", people=places).chosen == "start"
    # The posterior of a normal prior and a normal observation, by hand.
    (_, of_one), trust = chosen(slightly_worse).candidates, 0.0016 / (0.0016 + 0.0025 + 6.63e-6)
    assert of_one.expected == pytest.approx(0.03 - trust * (0.03 + 1 / 120), abs=1e-4)
    three = [result("start", [4] * 40), result("one", [2] * 40), result("two", [1] * 40)]
    assert significance.choose(three, "mrr@10").chosen == "two"


def concluded(
    folder: Path, choice: significance.ModelChoice, weight: float, questions: Any, seed: int = -1
) -> list[str]:
    """The verdict of made results; those of a seed are drawn."""
    count, draw = questions["test"]["queries"], np.random.default_rng(seed % 100)
    first: Sequence[float] = (0.5, 0.25, 0.625, 0.55, 0.75)
    ranks = [[1] * round(count * f) + [2] * (count - round(count * f)) for f in first]
    if seed >= 0:
        ranks = [draw.integers(1, 5, count).tolist() for _ in first]
    rows = [result(name, of) for name, of in zip(NAMES, ranks, strict=True)]
    compared = significance.compared(rows, ["mrr@10", "hit@1"], 1000)
    facts = {"comparisons": [dataclasses.asdict(c) for c in compared]}
    index = {"weight": weight, "windows": 0.7, "choice": {"questions": 125}}
    index |= {"texts": [], "encoder": {"path": "start"}, "cosine": True}
    for name, kind, info in (
        ("metrics", "metrics", {}),
        ("choice", "choice", {"choice": dataclasses.asdict(choice)}),
        ("questions", "questions", questions),
        ("index", "hybrid", index),
    ):
        with artifacts.create(folder / name, kind=kind) as out:
            out.info.update(info)
            if kind == "metrics":
                results.store(out, rows, facts)
    stage = Conclude(
        metrics=str(folder / "metrics"),
        validation=str(folder / "metrics"),
        choice=str(folder / "choice"),
        questions=str(folder / "questions"),
        index=str(folder / "index"),
        alone=("run_start", "run_1"),
        fused=("fused_start", "fused_1"),
        names=NAMES,
    )
    made = execute(stage, folder / "summary")
    summary = json.loads(made.file("summary.json").read_text())
    assert_true(summary, artifacts.load(folder / "metrics"), index)
    assert stage.summary(made) == "\n".join(summary["verdict"])
    return summary["verdict"]


def test_training_and_fusion_are_credited_with_their_own(tmp_path: Path) -> None:
    said = concluded(tmp_path, chosen([1] * 30 + [2] * 10), 0.3, JUDGED)
    assert "asked and judged by people (qrels/test.tsv)" in said[0]
    assert said[1].startswith(f"Use retriever 1 + BM25 ({tmp_path / 'index'}): it finds")
    assert "for 75 of 100 questions, BM25 alone for 50, the start alone for 25." in said[1]
    assert said[2].startswith("Training added +0.100 mrr@10 (p = ")
    assert "beside BM25 and +0.188 mrr@10 (p = " in said[2]
    assert said[4].startswith("Retriever 1 + BM25 has +0.125 mrr@10")
    assert "that is fusion and training; the start + BM25, untrained, has +0.025" in said[4]
    assert said[-1].startswith("Ask ten questions of your own: qac search --index")
    assert "noise" not in " ".join(said)


def test_the_start_is_kept_and_made_questions_are_a_caution(tmp_path: Path) -> None:
    kept = chosen([3] * 40)
    said = concluded(tmp_path / "fused", kept, 0.3, MADE)
    assert said[0].startswith("Caution: the 40 test questions were generated by qgen")
    assert said[1].startswith("Use the start + BM25") and "that is fusion." in said[4]
    assert said[3].startswith("It was not kept, so the start is used: on the 40 questions")
    assert "With 40 test questions only large differences" in " ".join(said)
    said = concluded(tmp_path / "alone", kept, 0.0, MADE)
    assert said[1].startswith("Use the start (") and "BM25 has the weight 0 of 1" in " ".join(said)
    said = concluded(tmp_path / "bm25", kept, 1.0, MADE)
    assert said[1].startswith("Use BM25 (") and "fusion" not in " ".join(said)


@pytest.mark.parametrize("seed", range(4))
def test_each_number_of_the_verdict_is_one_of_the_metrics(seed: int, tmp_path: Path) -> None:
    for place, weight in enumerate((0.3, 0.0, 1.0)):
        choice = chosen([1 + (seed + place) % 2] * 30 + [2] * 10)
        concluded(tmp_path / str(place), choice, weight, (JUDGED, MADE)[seed % 2], seed)
