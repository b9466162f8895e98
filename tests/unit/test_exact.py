"""Exact search equals sorting everything, whatever the blocks, devices and precision."""

import jax
import numpy as np
import pytest
import toy_retrieval as toy

from qac_jax.errors import UserError
from qac_jax.retrieval import exact
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.vectors import Vectors


ROWS, WIDTH = 3000, 16


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vectors, np.ndarray]:
    """Small whole numbers: scores are exact in every order of adding, and many are equal."""
    rng = np.random.default_rng(0)
    array = rng.integers(-2, 3, (ROWS, WIDTH)).astype(np.float32)
    return toy.save_vectors(tmp_path_factory.mktemp("vectors"), array), array


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return np.random.default_rng(1).integers(-2, 3, (7, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    ("k", "block", "devices"), [(100, 1024, 8), (100, 1024, 1), (ROWS, 512, 1)]
)
def test_equals_sorting_with_ties(vectors, queries, k, block, devices):
    files, array = vectors
    searcher = Exact(files, devices=jax.devices()[:devices], block_rows=block)
    scores, rows = searcher.search(queries, k)
    expected_scores, expected_rows = toy.brute_force(queries, array, k)
    np.testing.assert_array_equal(scores, expected_scores)
    np.testing.assert_array_equal(rows, expected_rows)
    assert len(np.unique(expected_scores[0])) < k  # or there would be no ties to put in order


def test_many_queries_go_in_chunks(vectors, monkeypatch):
    monkeypatch.setitem(exact._SCORE_BYTES, "cpu", 4 * 1024 * 5)
    files, array = vectors
    queries = np.random.default_rng(2).integers(-2, 3, (23, WIDTH)).astype(np.float32)
    _, rows = Exact(files, devices=jax.devices()[:1], block_rows=1024).search(queries, 9)
    np.testing.assert_array_equal(rows, toy.brute_force(queries, array, 9)[1])


def test_real_numbers_agree_with_numpy(tmp_path):
    rng = np.random.default_rng(3)
    array, queries = toy.clustered(rng, 700, 24).astype(np.float16), toy.clustered(rng, 5, 24)
    scores, rows = Exact(toy.save_vectors(tmp_path, array)).search(queries, 20)
    expected_scores, expected_rows = toy.brute_force(queries, array, 20)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=1e-6)
    assert (rows == expected_rows).mean() > 0.99


def test_fewer_rows_than_asked_for_and_another_width(tmp_path, queries):
    array = np.random.default_rng(5).integers(-2, 3, (6, WIDTH)).astype(np.float32)
    searcher = Exact(toy.save_vectors(tmp_path, array))
    scores, rows = searcher.search(queries, 9)
    np.testing.assert_array_equal(rows[:, :6], toy.brute_force(queries, array, 6)[1])
    assert (rows[:, 6:] == -1).all() and np.isneginf(scores[:, 6:]).all()
    with pytest.raises(UserError, match="8 dimensions and the index holds 16"):
        searcher.search(np.ones((1, 8), np.float32), 5)
