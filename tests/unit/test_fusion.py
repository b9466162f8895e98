"""Fusion: scales, fused scores and chosen weights by hand; merged runs of several indexes."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from toy_retrieval import write_vectors

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import fusion
from qac_jax.retrieval import index as indexes
from qac_jax.stages.index import Index
from qac_jax.stages.search import Fuse


DENSE = {"q": ranked(["a", "b", "c"], [0.8, 0.6, 0.2])}
BM25 = {"q": ranked(["c", "a", "d"], [10.0, 5.0, 4.0])}


def scores(run: Run) -> dict[str, float]:
    return dict(zip(*run["q"], strict=True))


def test_scales_by_hand():
    first = np.array([10.0, 4.0, 1.0])
    assert fusion.scale(first, "theoretical", 0.0) == (0.0, 10.0)
    assert fusion.scale(first, "theoretical", None) == (1.0, 9.0)
    assert fusion.scale(first, "min_max", 0.0) == (1.0, 9.0)
    # Scores that are all equal, or none at all, say nothing.
    assert fusion.scale(np.array([2.0, 2.0]), "min_max", None) == (2.0, 1.0)
    assert fusion.scale(np.zeros(3), "theoretical", 0.0) == (0.0, 1.0)
    assert fusion.scale(np.zeros(0), "min_max", None) == (0.0, 1.0)
    assert (fusion.lowest_score(DENSE), fusion.lowest_score(BM25)) == (-1.0, 0.0)
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


def test_weights_that_are_refused():
    for weights, said in (((-1, 2), "0 or more for each run"), ([1], "1 weights for 2 runs")):
        with pytest.raises(UserError, match=said):
            fusion.convex([DENSE, BM25], weights=weights)


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
    assert fusion.choose(gains, grid, prior=0.0).weight == 0.5
    # Where all are equal, the prior decides.
    assert fusion.choose(np.ones((3, 5)), grid, prior=0.4).weight == 0.5
    with pytest.raises(UserError, match="no question to choose a weight on"):
        fusion.choose(np.ones((3, 0)), grid, prior=0.4)


def test_reciprocal_rank_fusion_by_hand():
    one = {"q": ranked(["a", "b"], [9, 8]), "only": ranked(["z"], [1])}
    two = {"q": ranked(["b", "c"], [0.2, 0.1])}
    fused = fusion.reciprocal_rank([one, two])
    assert fused["q"].ids == ("b", "a", "c")
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 62]
    np.testing.assert_allclose(fused["q"].scores, expected, rtol=1e-6)
    assert fused["only"].ids == ("z",)
    assert fusion.reciprocal_rank([one, two], weights=[1, 0], depth=1)["q"].ids == ("a",)


ROWS, CUTS, K = 300, (0, 130, 131, 300), 20
RNG = np.random.default_rng(0)
# Whole numbers: sums of products are exact, in whatever order they are taken.
PASSAGES = RNG.integers(-99, 100, (ROWS, 8)).astype(np.float32)
QUERIES = RNG.integers(-99, 100, (7, 8)).astype(np.float32)


def searched(root: Path, name: str, start: int, stop: int) -> Path:
    """The run of an index of some of the passages, written as `qac search` does."""
    vectors = write_vectors(root / f"vectors_{name}", PASSAGES[start:stop], first=start)
    execute(Index(vectors=str(vectors), method="exact"), root / f"index_{name}")
    index = indexes.Index.load(root / f"index_{name}")
    scores, rows = index.search(QUERIES, min(K, stop - start))
    run = {
        f"q{number}": runs.ranked([index.ids[row] for row in found], given)
        for number, (given, found) in enumerate(zip(scores, rows.tolist(), strict=True))
    }
    runs.write_run(root / f"{name}.trec", run)
    return root / f"{name}.trec"


def test_merged_runs_are_the_run_of_one_index(tmp_path: Path) -> None:
    whole = searched(tmp_path, "whole", 0, ROWS)
    parts = [
        searched(tmp_path, f"part_{start}", start, stop) for start, stop in itertools.pairwise(CUTS)
    ]
    stage = Fuse(runs=",".join(map(str, parts)), method="merge", depth=K)
    merged = execute(stage, tmp_path / "merged")
    assert merged.count == len(QUERIES)
    assert (merged.path / "run.trec").read_bytes() == whole.read_bytes()
    assert artifacts.load(tmp_path / "merged").info["runs"] == [path.stem for path in parts]


def test_a_passage_of_two_runs_has_its_best_score_and_no_query_is_lost() -> None:
    first = {"q": runs.ranked(["a", "b"], [2.0, -1.0]), "alone": runs.ranked(["c"], [0.5])}
    merged = fusion.merged([first, {"q": runs.ranked(["b", "d"], [-0.5, -3.0])}], None)
    assert list(merged) == ["q", "alone"] and merged["alone"].ids == ("c",)
    assert dict(zip(*merged["q"], strict=True)) == {"a": 2.0, "b": -0.5, "d": -3.0}
