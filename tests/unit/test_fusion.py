"""Convex fusion: scales, fused scores, chosen weights, all by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.retrieval import fusion


DENSE = {"q": ranked(["a", "b", "c"], [0.8, 0.6, 0.2])}
BM25 = {"q": ranked(["c", "a", "d"], [10.0, 5.0, 4.0])}


def scores(run: Run) -> dict[str, float]:
    return dict(zip(*run["q"], strict=True))


def test_scales_by_hand():
    first = np.array([10.0, 4.0, 1.0])
    assert fusion.scale(first, "theoretical", 0.0) == (0.0, 10.0)
    assert fusion.scale(first, "theoretical", None) == (1.0, 9.0)
    assert fusion.scale(first, "min_max", 0.0) == (1.0, 9.0)
    assert fusion.scale(first, "z", 0.0) == pytest.approx((5.0, 14**0.5))
    # Scores that are all equal, or none at all, say nothing.
    assert fusion.scale(np.array([2.0, 2.0]), "min_max", None) == (2.0, 1.0)
    assert fusion.scale(np.zeros(3), "theoretical", 0.0) == (0.0, 1.0)
    assert fusion.scale(np.zeros(0), "z", None) == (0.0, 1.0)


def test_lowest_scores_are_known_by_their_range():
    assert fusion.lowest_score(DENSE) == -1.0
    assert fusion.lowest_score(BM25) == 0.0
    assert fusion.lowest_score({"q": ranked(["a", "b"], [7.0, -2.0])}) is None


def test_convex_by_hand():
    # Cosines from -1: 1, 1.6/1.8, 1.2/1.8, and d as the last; BM25 from 0: b as the last, 0.4.
    fused = fusion.convex([DENSE, BM25], weights=[3, 1])
    assert fused["q"].ids == ("a", "b", "c", "d")
    assert scores(fused) == pytest.approx(
        {
            "a": 0.75 + 0.25 * 0.5,
            "b": 0.75 * 1.6 / 1.8 + 0.25 * 0.4,
            "c": 0.75 * 1.2 / 1.8 + 0.25,
            "d": 0.75 * 1.2 / 1.8 + 0.25 * 0.4,
        }
    )
    lowest = fusion.convex([DENSE, BM25], weights=[1, 1], normalization="min_max", depth=2)
    assert scores(lowest) == pytest.approx({"a": 0.5 + 0.5 / 6, "c": 0.5})
    # A query that one run lacks keeps the order of the other.
    alone = fusion.convex([DENSE, {}], weights=[0.5, 0.5])
    assert alone["q"].ids == DENSE["q"].ids
    assert fusion.convex([DENSE, {"p": Ranking((), np.zeros(0))}])["p"].ids == ()


@pytest.mark.parametrize("normalization", ["theoretical", "min_max", "z"])
def test_weights_of_0_and_1_keep_an_order(normalization):
    rng = np.random.default_rng(0)
    one, two = (
        {"q": ranked([f"d{i}" for i in rng.permutation(20)[:9]], np.sort(rng.random(9))[::-1])}
        for _ in range(2)
    )
    for weights, expected in (((1, 0), one), ((0, 1), two)):
        fused = fusion.convex([one, two], weights=weights, normalization=normalization)
        assert fused["q"].ids[:8] == expected["q"].ids[:8]


def test_weights_that_are_refused():
    for weights in ((0, 0), (-1, 2)):
        with pytest.raises(UserError, match="0 or more for each run"):
            fusion.convex([DENSE, BM25], weights=weights)
    with pytest.raises(UserError, match="1 lowest scores for 2 runs"):
        fusion.convex([DENSE, BM25], lowest=[-1])
    with pytest.raises(UserError, match="1 weights for 2 runs"):
        fusion.convex([DENSE, BM25], weights=[1])


def test_reciprocal_ranks_by_hand():
    parts = np.array([[1.0, 0.5, 0.0], [0.0, 0.2, 1.0]])
    ranks = fusion.reciprocal_ranks(parts, np.array([False, False, True]), [0.0, 0.4, 0.6, 1.0])
    # Weight 0.4: 0.6, 0.38, 0.4 -> second; weight 0.6: 0.4, 0.32, 0.6 -> first.
    assert ranks.tolist() == [1 / 3, 1 / 2, 1.0, 1.0]
    cut = fusion.reciprocal_ranks(parts, np.array([False, False, True]), [0.0], cut=2)
    assert cut.tolist() == [0.0]
    assert fusion.reciprocal_ranks(parts[:, :0], np.zeros(0, bool), [0.5]).tolist() == [0.0]


def test_the_weight_nearest_to_the_prior_within_one_standard_error():
    grid = [0.0, 0.5, 1.0]
    # Differences of 0.5 to the best: 0, 0, 0, 0.5 -> mean 0.125, standard error 0.125: near enough.
    gains = np.array([[0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]])
    choice = fusion.choose(gains, grid, prior=0.25)
    assert (choice.weight, choice.best, choice.questions) == (0.5, 1.0, 4)
    assert [mean for _, mean, _ in choice.curve] == pytest.approx([0.1, 0.875, 1.0])
    assert choice.curve[1][2] == pytest.approx(0.125)
    assert fusion.choose(gains, grid, prior=0.25, errors=0.9).weight == 1.0
    assert fusion.choose(gains, grid, prior=0.0).weight == 0.5
    # Where all are equal, the prior decides.
    assert fusion.choose(np.ones((3, 5)), grid, prior=0.4).weight == 0.5
    with pytest.raises(UserError, match="no question to choose a weight on"):
        fusion.choose(np.ones((3, 0)), grid, prior=0.4)


def test_the_curve_is_shown():
    gains = np.array([[0.0, 0.5], [1.0, 0.5], [1.0, 1.0]])
    choice = fusion.choose(gains, [0.0, 0.5, 1.0], prior=0.5)
    assert choice.sentence() == (
        "weight 0.5 chosen on 2 questions, MRR@10 0.7500 (best weight 1: 1.0000)"
    )
    lines = str(choice).splitlines()
    assert lines[0] == "weight   MRR@10 (2 questions)"
    assert lines[1].split() == ["0", "0.2500", "#"]
    assert lines[2].split() == ["0.5", "0.7500", "#" * 16, "chosen,", "default"]
    assert lines[3].split() == ["1", "1.0000", "#" * 24, "best"]


def test_a_weight_is_chosen_on_runs():
    judged = {"q": {"c": 1}, "none": {"a": 0}, "absent": {"z": 1}}
    choice = fusion.choose_on_runs([DENSE, BM25], judged, prior=0.5, grid=[0.0, 0.5, 1.0])
    # Dense: c is third. One half: a 0.75, c 0.833. BM25: first. Absent from the runs: 0.
    assert [mean for _, mean, _ in choice.curve] == pytest.approx([1 / 6, 1 / 2, 1 / 2])
    assert choice.weight == choice.best == 0.5
    with pytest.raises(UserError, match="no judged query is in the runs"):
        fusion.choose_on_runs([DENSE, BM25], {"other": {"a": 1}}, prior=0.5)
    with pytest.raises(UserError, match="for two runs, not 3"):
        fusion.choose_on_runs([DENSE, BM25, BM25], judged, prior=0.5)
