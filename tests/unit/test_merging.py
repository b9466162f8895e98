"""Indexes of different passages, each searched by itself: their merged runs are that of one."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from toy_retrieval import write_vectors

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import index as indexes
from qac_jax.retrieval.fusion import Merged
from qac_jax.stages.fuse import Fuse
from qac_jax.stages.index import Index


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
    second = {"q": runs.ranked(["b", "d"], [-0.5, -3.0])}
    merged = Merged([first, second], None)
    assert list(merged) == ["q", "alone"] and len(merged) == 2
    assert merged["q"].ids == ("a", "b", "d")
    assert merged["q"].scores.tolist() == [2.0, -0.5, -3.0]
    assert merged["alone"].ids == ("c",) and "other" not in merged
    assert Merged([first, second], 1)["q"].ids == ("a",)


def test_weights_have_no_meaning_for_it() -> None:
    with pytest.raises(UserError, match="--method merge takes all scores as they are"):
        Fuse(runs="a,b", method="merge", weights=(1.0, 2.0)).check()
