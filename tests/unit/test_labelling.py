"""Pseudo-labels by thresholds: who becomes a positive, who a negative, and what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.inference.reranker import probability
from qac_jax.retrieval.mining import (
    Candidates,
    Labeller,
    Labelling,
    accuracy,
    lines_of,
    plain,
    summed,
)


IDS = tuple("abcdefgh")
SURE = np.array([0.06, 0.93, 0.52, 0.02, 0.97, 0.01, 0.08, 0.31])


def candidates(**changes: Any) -> Candidates:
    odds = np.log(SURE / (1 - SURE))
    return Candidates(**{"query": "q", "text": "what?", "ids": IDS, "odds": odds, **changes})


def labelled(rule: Labelling, seed: int = 111, **changes: Any) -> dict[str, Any]:
    record = Labeller(rule, seed).label(candidates(**changes))
    assert record is not None
    return record


def test_the_best_candidate_and_the_first_that_are_surely_wrong() -> None:
    record = labelled(Labelling(count=2, depth=8))
    assert record["positives"] == ["e"] and record["negatives"] == ["a", "d"]
    np.testing.assert_allclose(probability(np.array(record["positives_scores"])), [0.97], rtol=1e-4)
    np.testing.assert_allclose(
        probability(np.array(record["negatives_scores"])), [0.06, 0.02], rtol=1e-4
    )
    assert labelled(
        Labelling(depth=8),
    )["negatives"] == ["a", "d", "f", "g"]


def test_all_above_the_threshold() -> None:
    assert labelled(Labelling(positives="all", depth=8))["positives"] == ["e", "b"]
    assert labelled(Labelling(positives="all", positive=0.96, depth=8))["positives"] == ["e"]


def test_only_the_first_candidates_are_looked_at() -> None:
    record = labelled(Labelling(depth=4))
    assert record["positives"] == ["b"] and record["negatives"] == ["a", "d"]


def test_sampled_negatives_belong_to_query_and_seed() -> None:
    drawn = {
        tuple(labelled(Labelling(order="sampled", count=2, depth=8), seed)["negatives"])
        for seed in range(20)
    }
    assert len(drawn) > 3 and all(set(pair) < set("adfg") for pair in drawn)
    again = Labelling(order="sampled", count=2, depth=8)
    assert labelled(again, 3) == labelled(again, 3)


def test_judged_queries_keep_their_positives_and_lose_doubtful_negatives() -> None:
    given: dict[str, Any] = {"relevant": {"c": 0.0, "z": 0.0}}
    record = labelled(Labelling(depth=8), **given)
    assert record["positives"] == ["c", "z"] and record["negatives"] == ["a", "d", "f", "g"]
    extended = labelled(Labelling(depth=8, extend=True, positives="all"), **given)
    assert extended["positives"] == ["c", "z", "e", "b"]
    # Without a candidate that holds an answer there is no positive (Natural Questions).
    assert Labeller(Labelling(depth=8)).label(candidates(relevant={})) is None


def test_what_may_be_right_is_never_a_negative() -> None:
    record = labelled(Labelling(depth=8), excluded={"a", "f"})
    assert record["negatives"] == ["d", "g"]
    assert "d" not in labelled(Labelling(depth=8), relevant={"d": -4.0})["negatives"]


def test_a_shortage_is_filled_from_later_ranks_for_judged_queries() -> None:
    rule = Labelling(depth=4, fill=7, count=4)
    record = labelled(rule, relevant={"e": 1.0})
    assert record["negatives"][:2] == ["a", "d"] and set(record["negatives"][2:]) == {"f", "g"}
    assert record["negatives_scores"][2:] == [0.0, 0.0]
    assert labelled(rule)["negatives"] == ["a", "d"]  # an unjudged query is not filled up


def test_without_a_teacher_all_but_the_known_is_wrong() -> None:
    record = labelled(Labelling(depth=8, count=3), odds=None, relevant={"b": 0.0}, excluded={"c"})
    assert record["positives"] == ["b"] and record["negatives"] == ["a", "d", "e"]


def test_what_is_left_out_is_counted() -> None:
    labeller = Labeller(Labelling(positive=0.99, depth=8))
    assert labeller.label(candidates()) is None
    assert labeller.counts["queries without a positive"] == 1
    none = Labeller(Labelling(negative=0.001, depth=8))
    assert none.label(candidates()) is None and none.counts["queries without a negative"] == 1
    kept = Labeller(Labelling(depth=8))
    kept.label(candidates())
    counts = {"queries": 1, "queries kept": 1, "positives": 1, "positives by score": 1}
    assert kept.counts == {**counts, "negatives": 4}
    expected = np.zeros(20, int)
    np.add.at(expected, (SURE * 20).astype(int), 1)
    np.testing.assert_array_equal(kept.histogram, expected)


def test_lines_of_one_positive_and_one_negative() -> None:
    record = labelled(Labelling(depth=8, positives="all", count=3))
    lines = lines_of(record)
    assert len(lines) == 6 and {len(line["negatives"]) for line in lines} == {1}
    assert [line["negatives"][0] for line in lines[:3]] == record["negatives"]
    assert lines[4]["negatives_scores"] == record["negatives_scores"][1:2]


def test_accuracy_counts_judged_queries_alone() -> None:
    truth = {"q": {"e": 1, "a": 1}}
    right = accuracy(labelled(Labelling(depth=8)), truth)
    assert not accuracy({"_id": "other", "positives": ["x"], "negatives": ["y"]}, truth)
    pieces = [{"counts": {}, "accuracy": right, "histogram": [1]}]
    assert summed(pieces, {}, judged=True)["accuracy"] == {
        "positives": 1.0,
        "positives_looked_at": 1,
        "negatives": 0.75,
        "negatives_looked_at": 4,
    }


def test_equal_queries_are_told_whatever_their_marks() -> None:
    assert plain("  Who was  Ada Lovelace? ") == plain("who was ada lovelace")
    assert plain("who was ada") != plain("who was ada lovelace")


@pytest.mark.parametrize(
    "wrong", [{"positive": 0.1}, {"negative": -0.1}, {"count": 0}, {"fill": 10}], ids=str
)
def test_rules_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected|raise|move"):
        Labelling(**wrong)
