"""Golden case 01: BERT's hidden states, pooler, MLM logits, loss and gradients."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import huggingface
from qac_jax.models.bert import Bert
from qac_jax.models.layers import Runtime


CASES = golden.parameters("01_")


@pytest.fixture(params=golden.PRECISIONS)
def precision(request):
    with golden.precision_context(request.param):
        yield request.param


def _inputs(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return arrays["input_ids"], golden.lengths(arrays["attention_mask"]), arrays["token_type_ids"]


def _model(folder: Path, precision: str, scan: bool = False) -> tuple[Bert, Any]:
    bert, variables = huggingface.load(folder, Runtime(dtype=precision, scan=scan))
    assert isinstance(bert, Bert)
    return bert, golden.in_precision(variables, precision)


def _mean_cross_entropy(logits: jax.Array, labels: np.ndarray) -> jax.Array:
    wanted = jnp.asarray(labels != -100)
    picked = jnp.take_along_axis(
        jax.nn.log_softmax(logits), jnp.where(wanted, labels, 0)[..., None], axis=-1
    )[..., 0]
    return -jnp.where(wanted, picked, 0).sum() / wanted.sum()


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_logits(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    scan = precision == "float32"  # scan = loop is shown elsewhere, in x64
    bert, variables = _model(case / "model", precision, scan)
    ids, lengths, types = _inputs(arrays)
    states = range(bert.config.num_layers + 1)

    @jax.jit
    def run(variables: Any):
        out = bert.apply(variables, ids, lengths, types, hidden_states=tuple(states))
        return out, bert.apply(variables, out.last, method="mlm_logits")

    out, logits = run(variables)
    check = functools.partial(golden.assert_activation, precision=precision)
    expect = functools.partial(golden.expected, arrays, precision=precision)
    for number in states:
        name = f"hidden_state_{number}"
        check(out.hidden_states[number], expect(name), what=name)
    check(out.last, expect(f"hidden_state_{bert.config.num_layers}"), what="last")
    check(out.cls, expect("cls"), what="cls")
    check(logits, expect("mlm_logits"), what="mlm_logits")
    loss = _mean_cross_entropy(logits, arrays["labels"])
    golden.assert_loss(loss, expect("mlm_loss"), precision, what="mlm_loss")


@pytest.mark.parametrize("case", CASES)
def test_default_arguments_mean_no_padding(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model", precision)
    last = jax.jit(bert.apply)(variables, arrays["input_ids"]).last
    expected = golden.expected(arrays, "last_hidden_state_default_args", precision)
    golden.assert_activation(last, expected, precision)


@pytest.mark.parametrize("case", CASES)
def test_pooler(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model_bert", precision)
    run = jax.jit(functools.partial(bert.apply, rows=1))
    pooled = run(variables, *_inputs(arrays)).pooled
    golden.assert_activation(pooled, golden.expected(arrays, "pooler_output", precision), precision)


@pytest.mark.parametrize("case", CASES)
def test_gradients(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model", precision)
    inputs, labels = _inputs(arrays), arrays["labels"]

    def loss(variables: Any) -> jax.Array:
        last = bert.apply(variables, *inputs).last
        return _mean_cross_entropy(bert.apply(variables, last, method="mlm_logits"), labels)

    gradients = jax.jit(jax.grad(loss))(variables)
    trees = {"backbone": jax.device_get(gradients["params"])}
    stored = list(golden.names(arrays, "grad__"))
    assert stored and meta["grad_norms_f64"], "the case holds no gradients"
    for name in stored:
        expected = golden.expected(arrays, f"grad__{name}", precision)
        golden.assert_gradient(hf_bert.select(trees, name), expected, precision, what=name)
    for name, norm in meta["grad_norms_f64"].items():
        golden.assert_gradient_norm(hf_bert.select(trees, name), norm, precision, what=name)
