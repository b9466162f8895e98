"""Token cross-entropy against torch, and its padded vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.models import packing
from qac_jax.objectives.token_loss import token_loss


RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 7)) * 3
LABELS = RNG.integers(0, 7, (3, 4))
WEIGHTS = RNG.random((3, 4)) * (RNG.random((3, 4)) > 0.3)


@pytest.fixture(autouse=True, params=["cpu", "gpu"])
def _made_for(request):
    """The form that is usual, and the one in one pass."""
    with packing.made_for(request.param):
        yield


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_it_is_torchs_cross_entropy(smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    losses = torch.nn.functional.cross_entropy(
        torch.tensor(LOGITS.reshape(-1, 7)),
        torch.tensor(LABELS.ravel()),
        reduction="none",
        label_smoothing=smoothing,
    )
    with jax.enable_x64(True):
        padded = jnp.pad(
            jnp.asarray(LOGITS),
            ((0, 0), (0, 0), (0, 3)),
            constant_values=np.finfo(np.float64).min,
        )
        for logits in (jnp.asarray(LOGITS), padded):
            found = token_loss(
                logits, jnp.asarray(LABELS), jnp.asarray(WEIGHTS), smoothing=smoothing
            )
            expected = float((losses.numpy() * WEIGHTS.ravel()).sum())
            np.testing.assert_allclose(found.loss, expected, rtol=1e-12)
    right = (LOGITS.argmax(-1) == LABELS) * WEIGHTS
    np.testing.assert_allclose(found.accuracy, right.sum(), rtol=1e-12)


def test_z_loss_is_the_square_of_the_normaliser() -> None:
    with jax.enable_x64(True):
        arguments = jnp.asarray(LOGITS), jnp.asarray(LABELS), jnp.asarray(WEIGHTS)
        plain, with_z = token_loss(*arguments), token_loss(*arguments, z_loss=0.01)
        z = np.log(np.exp(LOGITS).sum(-1))
        np.testing.assert_allclose(
            with_z.loss - plain.loss, 0.01 * (WEIGHTS * z**2).sum(), rtol=1e-10
        )
        np.testing.assert_allclose(with_z.likelihood, plain.loss, rtol=1e-12)


def test_its_gradient_is_softmax_minus_target() -> None:
    with jax.enable_x64(True):
        labels, weights = jnp.asarray(LABELS), jnp.asarray(WEIGHTS)
        gradient = jax.grad(lambda x: token_loss(x, labels, weights).loss)(jnp.asarray(LOGITS))
        softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
        expected = (softmax - np.eye(7)[LABELS]) * WEIGHTS[..., None]
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


def test_bf16_logits_are_summed_in_fp32() -> None:
    labels, weights = jnp.asarray(LABELS), jnp.asarray(WEIGHTS, jnp.float32)
    found = token_loss(jnp.asarray(LOGITS, jnp.bfloat16), labels, weights)
    assert found.loss.dtype == jnp.float32
