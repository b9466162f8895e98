"""Golden case 09: cross-encoder logits, losses and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface
from qac_jax.models.encoders import CrossEncoder
from qac_jax.models.layers import Runtime


CASES = golden.parameters("09_")


@pytest.fixture(params=golden.PRECISIONS)
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


def _model(folder: Path, precision: str) -> tuple[CrossEncoder, Any]:
    model, variables = huggingface.load(folder, Runtime(dtype=precision))
    assert isinstance(model, CrossEncoder)
    return model, golden.in_precision(variables, precision)


def _inputs(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return arrays["input_ids"], golden.lengths(arrays["attention_mask"]), arrays["token_type_ids"]


@pytest.mark.parametrize("case", CASES)
def test_logits(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    folders = sorted(case.glob("model_*label"))
    assert folders
    for folder in folders:
        model, variables = _model(folder, precision)
        logits = jax.jit(model.apply)(variables, *_inputs(arrays))
        name = f"logits_{model.labels}label"
        expected = golden.expected(arrays, name, precision)
        golden.assert_activation(logits, expected, precision, what=name)


def _two_label_loss(logits: jax.Array, arrays: dict[str, np.ndarray]) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), arrays["labels_2"][:, None], axis=-1)
    return -picked.mean()


def _rerank_loss(logits: jax.Array, arrays: dict[str, np.ndarray]) -> jax.Array:
    """Tevatron's: one logit a pair, two groups of candidates, the first is the positive."""
    return -jax.nn.log_softmax(logits.reshape(2, -1))[:, 0].mean()


@pytest.mark.parametrize(
    ("folder", "loss", "value", "kind"),
    [
        ("model_2label", _two_label_loss, "loss_2label", "2label"),
        ("model_1label", _rerank_loss, "rerank_loss", "rerank"),
    ],
    ids=["two_labels", "rerank"],
)
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients(case, folder, loss, value, kind, precision) -> None:
    meta, arrays = golden.load(case)
    model, variables = _model(case / folder, precision)

    @jax.jit
    @jax.value_and_grad
    def total(variables: Any) -> jax.Array:
        return loss(model.apply(variables, *_inputs(arrays)), arrays)

    actual, gradients = total(variables)
    golden.assert_loss(actual, golden.expected(arrays, value, precision), precision, what=value)
    trees = jax.device_get(gradients["params"])
    stored = list(golden.names(arrays, f"grad_{kind}__"))
    norms = meta[f"grad_norms_{kind}_f64"]
    assert stored and norms, "the case holds no gradients"
    for name in stored:
        expected = golden.expected(arrays, f"grad_{kind}__{name}", precision)
        golden.assert_gradient(hf_bert.select(trees, name), expected, precision, what=name)
    for name, norm in norms.items():
        golden.assert_gradient_norm(hf_bert.select(trees, name), norm, precision, what=name)
