"""Golden cases 01, 09 and 15: BERT, cross-encoders, their objectives and adversarial step."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_bert
import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.hub import huggingface
from qac_jax.models.bert import Bert
from qac_jax.models.encoders import CrossEncoder
from qac_jax.models.layers import Runtime
from qac_jax.objectives import cross_encoder


precision = golden.precision


def _inputs(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return arrays["input_ids"], golden.lengths(arrays["attention_mask"]), arrays["token_type_ids"]


def _model(folder: Path, precision: str, scan: bool = False) -> tuple[Any, Any]:
    model, variables = huggingface.load(folder, Runtime(dtype=precision, scan=scan))
    assert isinstance(model, Bert | CrossEncoder)
    return model, golden.in_precision(variables, precision)


def _mean_cross_entropy(logits: jax.Array, labels: np.ndarray) -> jax.Array:
    wanted = jnp.asarray(labels != -100)
    picked = jnp.take_along_axis(
        jax.nn.log_softmax(logits), jnp.where(wanted, labels, 0)[..., None], axis=-1
    )[..., 0]
    return -jnp.where(wanted, picked, 0).sum() / wanted.sum()


@golden.each_case("01_")
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


@golden.each_case("01_")
def test_default_arguments_mean_no_padding(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model", precision)
    last = jax.jit(bert.apply)(variables, arrays["input_ids"]).last
    expected = golden.expected(arrays, "last_hidden_state_default_args", precision)
    golden.assert_activation(last, expected, precision)


@golden.each_case("01_", slow=("float32",))
def test_pooler(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model_bert", precision)
    run = jax.jit(functools.partial(bert.apply, rows=1))
    pooled = run(variables, *_inputs(arrays)).pooled
    golden.assert_activation(pooled, golden.expected(arrays, "pooler_output", precision), precision)


@golden.each_case("01_", slow=("float32",))
def test_gradients(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    bert, variables = _model(case / "model", precision)
    inputs, labels = _inputs(arrays), arrays["labels"]

    def loss(variables: Any) -> jax.Array:
        last = bert.apply(variables, *inputs).last
        return _mean_cross_entropy(bert.apply(variables, last, method="mlm_logits"), labels)

    gradients = jax.jit(jax.grad(loss))(variables)
    trees = {"backbone": jax.device_get(gradients["params"])}
    assert list(golden.names(arrays, "grad__"))
    hf_bert.check_gradients(trees, arrays, meta["grad_norms_f64"], "grad__", precision)


def _pairs(arrays: dict[str, np.ndarray], name: str = "pair") -> dict[str, Any]:
    ids, lengths, types = _inputs(arrays)
    given = {name: ids, f"{name}_types": types, f"{name}_length": lengths}
    return given | {"label": arrays["labels_2"]}


def _run(objective: Any, variables: Any, batch: Any, train: bool = False) -> Any:
    def loss(variables: Any) -> Any:
        ready = objective.prepare(batch, jax.random.key(0))
        return objective.loss(variables, ready, jax.random.key(1), train)[0]

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables)
    return value, jax.device_get(gradients["params"])


@golden.each_case("09_", slow=("float32",))
def test_logits(case: Path, precision: str) -> None:
    _, arrays = golden.load(case)
    folders = sorted(case.glob("model_*label"))
    assert folders
    for folder in folders:
        model, variables = _model(folder, precision)
        logits = jax.jit(model.apply)(variables, *_inputs(arrays))
        name = f"logits_{model.labels}label"
        expected = golden.expected(arrays, name, precision)
        golden.assert_activation(logits, expected, precision, what=name)


@golden.each_case("09_", slow=("float64",))
def test_pointwise(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    model, variables = _model(case / "model_2label", precision)
    value, gradients = _run(cross_encoder.Pointwise(model), variables, _pairs(arrays))
    golden.assert_loss(value, golden.expected(arrays, "loss_2label", precision), precision)
    assert list(golden.names(arrays, "grad_2label__"))
    hf_bert.check_gradients(
        gradients, arrays, meta["grad_norms_2label_f64"], "grad_2label__", precision
    )


@golden.each_case("09_", slow=("float64",))
def test_localized(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    model, variables = _model(case / "model_1label", precision)
    groups = _pairs(arrays, "pairs")
    del groups["label"]
    groups = {n: x.reshape(2, -1, *x.shape[1:]) for n, x in groups.items()}
    value, gradients = _run(cross_encoder.Localized(model), variables, groups)
    golden.assert_loss(value, golden.expected(arrays, "rerank_loss", precision), precision)
    assert list(golden.names(arrays, "grad_rerank__"))
    hf_bert.check_gradients(
        gradients, arrays, meta["grad_norms_rerank_f64"], "grad_rerank__", precision
    )


@golden.each_case("15_", slow=golden.PRECISIONS)
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
        hf_bert.check_gradients(moved, arrays, norms, f"{variant}__grad__", precision)
