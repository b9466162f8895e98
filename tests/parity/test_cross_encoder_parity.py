"""Golden cases 09 and 15: the objectives' losses, their gradients, and the adversarial step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import numpy as np
import pytest

from qac_jax.hub import huggingface
from qac_jax.models.encoders import CrossEncoder
from qac_jax.models.layers import Runtime
from qac_jax.objectives import cross_encoder


CASES = golden.parameters("09_")
PERTURBED = golden.parameters("15_")


@pytest.fixture(params=golden.PRECISIONS)
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


def _model(folder: Path, precision: str) -> tuple[CrossEncoder, Any]:
    model, variables = huggingface.load(folder, Runtime(dtype=precision))
    assert isinstance(model, CrossEncoder)
    return model, golden.in_precision(variables, precision)


def _pairs(arrays: dict[str, np.ndarray], name: str = "pair") -> dict[str, Any]:
    return {
        name: arrays["input_ids"],
        f"{name}_types": arrays["token_type_ids"],
        f"{name}_length": golden.lengths(arrays["attention_mask"]),
        "label": arrays["labels_2"],
    }


def _run(objective: Any, variables: Any, batch: Any, train: bool = False) -> Any:
    def loss(variables: Any) -> Any:
        ready = objective.prepare(batch, jax.random.key(0))
        return objective.loss(variables, ready, jax.random.key(1), train)[0]

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables)
    return value, jax.device_get(gradients["params"])


@pytest.mark.parametrize("case", CASES)
def test_pointwise(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    model, variables = _model(case / "model_2label", precision)
    value, gradients = _run(cross_encoder.Pointwise(model), variables, _pairs(arrays))
    golden.assert_loss(value, golden.expected(arrays, "loss_2label", precision), precision)
    _assert_gradients(gradients, arrays, meta["grad_norms_2label_f64"], "grad_2label__", precision)


@pytest.mark.parametrize("case", CASES)
def test_localized(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    model, variables = _model(case / "model_1label", precision)
    groups = _pairs(arrays, "pairs")
    del groups["label"]
    groups = {n: x.reshape(2, -1, *x.shape[1:]) for n, x in groups.items()}
    value, gradients = _run(cross_encoder.Localized(model), variables, groups)
    golden.assert_loss(value, golden.expected(arrays, "rerank_loss", precision), precision)
    _assert_gradients(gradients, arrays, meta["grad_norms_rerank_f64"], "grad_rerank__", precision)


@pytest.mark.parametrize("case", PERTURBED)
def test_adversarial_step(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    (origin,) = case.parent.glob("09_*")
    _, inputs = golden.load(origin)
    model, variables = _model(origin / "model_2label", precision)
    batch = _pairs(inputs)
    clean, gradients = _run(cross_encoder.Pointwise(model), variables, batch, train=True)
    golden.assert_loss(clean, golden.expected(arrays, "clean_loss", precision), precision)
    gradient = model.config.words_of(gradients["backbone"])
    expected = golden.expected(arrays, "clean_grad_word_embeddings", precision)
    golden.assert_gradient(gradient, expected, precision)
    assert meta["steps"]
    for step in meta["steps"]:
        variant = f"step{step}"
        objective = cross_encoder.Pointwise(model, adversarial_step=step)
        assert not objective.splittable
        delta = cross_encoder.adversarial(gradient, step)
        golden.assert_gradient(
            delta, golden.expected(arrays, f"{variant}__delta", precision), precision
        )
        if precision == "float64":  # in chunks its direction is still that of the whole batch
            objective = dataclasses.replace(objective, chunk=len(batch["label"]) // 2)
        value, moved = _run(objective, variables, batch, train=True)
        expected = golden.expected(arrays, f"{variant}__perturbed_loss", precision)
        golden.assert_loss(value, expected, precision, what=variant)
        norms = meta["grad_norms_perturbed_f64"][variant]
        _assert_gradients(moved, arrays, norms, f"{variant}__grad__", precision)


def _assert_gradients(trees, arrays, norms, prefix, precision) -> None:
    stored = list(golden.names(arrays, prefix))
    assert stored and norms, "the case holds no gradients"
    for name in stored:
        expected = golden.expected(arrays, f"{prefix}{name}", precision)
        golden.assert_gradient(hf_bert.select(trees, name), expected, precision, what=name)
    for name, norm in norms.items():
        golden.assert_gradient_norm(hf_bert.select(trees, name), norm, precision, what=name)
