"""Fusion: scales, fused scores and chosen weights by hand; merged runs of several indexes."""

from pathlib import Path

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.runs import Run, ranked
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import fusion
from qac_jax.stages.search import Fuse


DENSE = {"q": ranked(["a", "b", "c"], [0.8, 0.6, 0.2])}
BM25 = {"q": ranked(["c", "a", "d"], [10.0, 5.0, 4.0])}


def scores(run: Run) -> dict[str, float]:
    return dict(zip(*run["q"], strict=True))


def test_scores_that_are_equal_say_nothing_and_the_lowest_may_be_unknown():
    assert fusion.scale(np.array([2.0, 2.0]), "min_max", None) == (2.0, 1.0)
    assert fusion.lowest_score({"q": ranked(["a", "b"], [7.0, -2.0])}) is None
    assert fusion.scale(np.array([10.0, 4.0, 1.0]), "theoretical", None) == (1.0, 9.0)


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
    with pytest.raises(UserError, match="1 weights for 2 runs"):
        fusion.convex([DENSE, BM25], weights=[1])


def test_reciprocal_ranks_by_hand():
    parts = np.array([[1.0, 0.5, 0.0], [0.0, 0.2, 1.0]])
    ranks = fusion.reciprocal_ranks(parts, np.array([False, False, True]), [0.0, 0.4, 0.6, 1.0])
    # Weight 0.4: 0.6, 0.38, 0.4 -> second; weight 0.6: 0.4, 0.32, 0.6 -> first.
    assert ranks.tolist() == [1 / 3, 1 / 2, 1.0, 1.0]


def test_the_weight_nearest_to_the_prior_within_two_standard_errors():
    grid = [0.0, 0.5, 1.0]
    # Differences to the best of 0, 0, 0.5, 0.5: mean 0.25, standard error 0.144: near enough.
    gains = np.array([[0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0]])
    choice = fusion.choose(gains, grid, prior=0.25)
    assert (choice.weight, choice.best, choice.questions) == (0.5, 1.0, 4)
    assert [mean for _, mean, _ in choice.curve] == pytest.approx([0.1, 0.75, 1.0])
    far = np.array([gains[0], [1.0, 0.5, 0.5, 0.5], gains[2]])  # 0.375, three standard errors
    assert fusion.choose(far, grid, prior=0.25).weight == 1.0
    # A weight beyond the prior, whose differences are noisier, is not nearer by that.
    noisy = np.array([[1.0] * 4, [0.5] * 4, [1.0, 0.0] * 2])
    assert fusion.choose(noisy, grid, prior=0.55).weight == 0.0
    # Where all are equal, the prior decides.
    assert fusion.choose(np.ones((3, 5)), grid, prior=0.4).weight == 0.5


def test_reciprocal_rank_fusion_by_hand():
    one = {"q": ranked(["a", "b"], [9, 8]), "only": ranked(["z"], [1])}
    two = {"q": ranked(["b", "c"], [0.2, 0.1])}
    fused = fusion.reciprocal_rank([one, two])
    assert fused["q"].ids == ("b", "a", "c")
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 62]
    np.testing.assert_allclose(fused["q"].scores, expected, rtol=1e-6)
    assert fused["only"].ids == ("z",)
    assert fusion.reciprocal_rank([one, two], weights=[1, 0], depth=1)["q"].ids == ("a",)


def test_merged_runs_are_the_run_of_one_index(tmp_path: Path) -> None:
    given = np.random.default_rng(0).permutation(300 * 7).reshape(7, 300) / 16
    for name, start, stop in (("whole", 0, 300), ("a", 0, 130), ("b", 130, 131), ("c", 131, 300)):
        ids = [f"d{row}" for row in range(start, stop)]
        run = {f"q{n}": ranked(ids, row[start:stop]).top(20) for n, row in enumerate(given)}
        runs.write_run(tmp_path / f"{name}.trec", run)
    parts = ",".join(str(tmp_path / f"{name}.trec") for name in "abc")
    merged = execute(Fuse(runs=parts, method="merge", depth=20), tmp_path / "merged")
    assert (merged.path / "run.trec").read_bytes() == (tmp_path / "whole.trec").read_bytes()
    assert merged.info["runs"] == ["a", "b", "c"]
    # A passage of two runs has its best score, and no query is lost.
    first = {"q": ranked(["a", "b"], [2.0, -1.0]), "alone": ranked(["c"], [0.5])}
    joined = fusion.merged([first, {"q": ranked(["b", "d"], [-0.5, -3.0])}], None)
    assert joined["alone"].ids == ("c",) and scores(joined) == {"a": 2.0, "b": -0.5, "d": -3.0}
