"""Contrastive losses: by hand, against loops, and what groups and row chunks must not change."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.objectives import contrastive


# Compiled whole: a call by single operations compiles each of them.
in_batch = jax.jit(
    contrastive.in_batch, static_argnames=("temperature", "smoothing", "group", "rows")
)
all_pairs = jax.jit(contrastive.all_pairs, static_argnames=("temperature", "group", "rows"))


def vectors(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def by_hand(scores: list[float], positive: int) -> float:
    return -math.log(math.exp(scores[positive]) / sum(map(math.exp, scores)))


def loop(q: np.ndarray, p: np.ndarray, temperature: float, extra: np.ndarray | None) -> np.ndarray:
    """Every query against every passage, one at a time."""
    per = p.shape[1]
    candidates = [x for passages in p for x in passages] + list([] if extra is None else extra)
    return np.array(
        [
            by_hand([float(x @ c) / temperature for c in candidates], i * per)
            for i, x in enumerate(q)
        ]
    )


def test_two_queries_by_hand() -> None:
    queries = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    passages = jnp.array([[[2.0, 0.0]], [[1.0, 1.0]]])
    ranked = in_batch(queries, passages)
    expected = [math.log(1 + math.exp(1 - 2)), math.log(1 + math.exp(0 - 2))]
    np.testing.assert_allclose(ranked.loss, expected, rtol=1e-6)
    assert ranked.correct.tolist() == [1, 1]
    worse = in_batch(queries, passages[::-1])
    assert worse.correct.tolist() == [0, 0]


def test_zero_vectors_know_nothing() -> None:
    q, p, extra = jnp.zeros((6, 4)), jnp.zeros((6, 3, 4)), jnp.zeros((10, 4))
    np.testing.assert_allclose(in_batch(q, p).loss, math.log(18), rtol=1e-6)
    pairs = all_pairs(q, q).loss
    assert pairs.shape == (6, 2)
    np.testing.assert_allclose(pairs, math.log(11), rtol=1e-6)
    queue = in_batch(q, p[:, :1], group=1, extra=extra)
    np.testing.assert_allclose(queue.loss, math.log(1 + 10), rtol=1e-6)
    np.testing.assert_allclose(in_batch(q, p[:, :2], group=3).loss, math.log(6), rtol=1e-6)


@pytest.mark.parametrize("extra", [None, 5])
def test_in_batch_equals_a_loop_over_candidates(extra: int | None) -> None:
    with jax.enable_x64(True):
        q, p = vectors(0, 4, 3), vectors(1, 4, 2, 3)
        more = None if extra is None else jnp.asarray(vectors(2, extra, 3))
        found = in_batch(jnp.asarray(q), jnp.asarray(p), temperature=0.5, extra=more)
        np.testing.assert_allclose(
            found.loss, loop(q, p, 0.5, None if more is None else np.asarray(more)), rtol=1e-12
        )


def test_a_group_sees_itself_only() -> None:
    with jax.enable_x64(True):
        q, p, extra = (
            jnp.asarray(vectors(i, *s)) for i, s in enumerate([(6, 3), (6, 2, 3), (4, 3)])
        )
        whole = in_batch(q, p, group=2, extra=extra).loss
        parts = [in_batch(q[i : i + 2], p[i : i + 2], extra=extra).loss for i in (0, 2, 4)]
        np.testing.assert_allclose(whole, jnp.concatenate(parts), rtol=1e-12)
        pairs = all_pairs(q, p[:, 0], group=3).loss
        parts = [all_pairs(q[i : i + 3], p[i : i + 3, 0]).loss for i in (0, 3)]
        np.testing.assert_allclose(pairs, jnp.concatenate(parts), rtol=1e-12)


def test_all_pairs_equals_a_loop() -> None:
    with jax.enable_x64(True):
        first, second = vectors(3, 3, 4), vectors(4, 3, 4)
        found = all_pairs(jnp.asarray(first), jnp.asarray(second), temperature=2.0)
        everyone = [(i, s, v) for s, side in enumerate((first, second)) for i, v in enumerate(side)]
        for i, s, anchor in everyone:
            others = [(j, t, v) for j, t, v in everyone if (j, t) != (i, s)]
            partner = [(j, t) for j, t, _ in others].index((i, 1 - s))
            expected = by_hand([float(anchor @ v) / 2 for _, _, v in others], partner)
            np.testing.assert_allclose(found.loss[i, s], expected, rtol=1e-12)


def test_another_copy_of_the_positive_is_no_negative() -> None:
    with jax.enable_x64(True):
        q, p = jnp.asarray(vectors(5, 3, 4)), jnp.asarray(vectors(6, 3, 2, 4))
        names = jnp.array([[7, 1], [2, 7], [3, 9]])
        found = in_batch(q, p, identities=names, extra=p[0]).loss
        flat = np.concatenate([np.asarray(p).reshape(6, 4), np.asarray(p[0])])
        scores = np.asarray(q) @ flat.T
        seen = [[0, 1, 2, 4, 5, 6, 7], range(8), range(8)]  # passage 7 is also at column 3
        for i, columns in enumerate(seen):
            expected = by_hand([scores[i, c] for c in columns], list(columns).index(2 * i))
            np.testing.assert_allclose(found[i], expected, rtol=1e-12)


def test_label_smoothing_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    q, p = vectors(7, 4, 3), vectors(8, 4, 1, 3)
    with jax.enable_x64(True):
        found = in_batch(jnp.asarray(q), jnp.asarray(p), smoothing=0.1).loss.mean()
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(q @ p[:, 0].T), torch.arange(4), label_smoothing=0.1
    )
    np.testing.assert_allclose(found, expected.item(), rtol=1e-12)


def _in_batch(q: Any, p: Any, rows: int) -> Any:
    names = jnp.arange(p.shape[0] * p.shape[1]).reshape(p.shape[:2]) % 7
    return in_batch(q, p, temperature=0.3, extra=p[0], identities=names, smoothing=0.1, rows=rows)


def _all_pairs(q: Any, p: Any, rows: int) -> Any:
    return all_pairs(q, p[:, 0], temperature=0.3, rows=rows)


@pytest.mark.parametrize("loss", [_in_batch, _all_pairs])
def test_row_chunks_change_nothing(loss: Any) -> None:
    with jax.enable_x64(True):
        q, p = jnp.asarray(vectors(9, 8, 5)), jnp.asarray(vectors(10, 8, 2, 5))
        ranked = loss(q, p, 0), loss(q, p, 4)
        for direct, chunked in zip(*ranked, strict=True):
            np.testing.assert_allclose(direct, chunked, rtol=1e-9)
        weights = jnp.asarray(vectors(11, *ranked[0].loss.shape))
        gradient = [
            jax.jit(jax.grad(lambda a: jnp.sum(weights * loss(*a, rows).loss)))((q, p))  # noqa: B023
            for rows in (0, 4)
        ]
        for direct, chunked in zip(*gradient, strict=True):
            np.testing.assert_allclose(direct, chunked, rtol=1e-9, atol=1e-12)
            assert np.abs(direct).max() > 0.01


def test_scores_are_fp32_whatever_the_vectors_are() -> None:
    q = jnp.asarray(vectors(12, 4, 8), jnp.bfloat16)
    ranked = in_batch(q, q[:, None])
    assert ranked.loss.dtype == jnp.float32
    wide = q.astype(jnp.float32)
    np.testing.assert_allclose(ranked.loss, in_batch(wide, wide[:, None]).loss)


def test_a_group_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="negatives_group=4 does not divide the batch of 6"):
        in_batch(jnp.zeros((6, 2)), jnp.zeros((6, 1, 2)), group=4)
