"""MLM, sequence to sequence and span corruption: parts of a batch add up to the whole batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.masking import Masking, Vocabulary
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.objective import Objective
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.span_corruption import SpanCorruption
from qac_jax.training import mesh as meshes
from qac_jax.training.optimizers import Optimizer
from qac_jax.training.step import Engine


VOCABULARY = Vocabulary(np.arange(64) % 3 == 2)
SIZE, LENGTH = 16, 12
BERT = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=LENGTH,
)
TINY_T5 = T5Config(
    vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2
)


def objectives(dtype: str) -> dict[str, Any]:
    runtime = Runtime(dtype=dtype, dropout="hash")  # compiles several times faster
    t5 = T5(TINY_T5, runtime)
    return {
        "mlm": Mlm(Bert(BERT, runtime), Masking(0.3), VOCABULARY),
        "seq2seq": Seq2Seq(t5, smoothing=0.1, z_loss=1e-3),
        "span_corruption": SpanCorruption(t5),
    }


NAMES = list(objectives("float32"))


def make_batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Texts of unequal lengths; among them one with nothing to mask."""
    rng = np.random.default_rng(seed)
    batch = {}
    for name in ("tokens", "inputs", "targets"):
        lengths = rng.integers(4, LENGTH + 1, SIZE).astype(np.int32)
        ids = rng.integers(5, 60, (SIZE, LENGTH)).astype(np.int32)
        ids[:, 0] = VOCABULARY.cls
        ids[3, 1:] = VOCABULARY.unk
        batch[name] = np.where(np.arange(LENGTH) < lengths[:, None], ids, 0).astype(np.int32)
        batch[f"{name}_length"] = lengths
    return batch


# One of two that share their loss and their model is enough for a quick run.
QUICK = ["mlm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("seq2seq", "span_corruption"))]
QUICK_MLM = ["mlm", pytest.param("span_corruption", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", QUICK)
def test_parts_of_a_batch_add_up(name: str) -> None:
    with jax.enable_x64(True):
        objective = objectives("float64")[name]
        variables = jax.tree.map(
            lambda x: x.astype(jnp.float64), nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
        )
        batch = jax.jit(objective.prepare)(make_batch(), jax.random.key(1))

        @jax.jit
        def run(batch: Any) -> Any:
            def loss(variables: Any) -> Any:
                return objective.loss(variables, batch, jax.random.key(2), True)

            return jax.value_and_grad(loss, has_aux=True)(variables)

        whole = run(batch)
        parts = [run(jax.tree.map(lambda x, i=i: x[i : i + 4], batch)) for i in range(0, SIZE, 4)]
        summed = jax.tree.map(lambda *x: sum(x), *parts)
        largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(whole[1]))
        assert largest > 1e-3
        for a, b in zip(jax.tree.leaves(summed), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * largest)


def one_step(name: str, shape: tuple[int, int, int], scan: bool, microbatch: int) -> Any:
    objective = objectives("float32")[name]
    runtime = dataclasses.replace(objective.model.runtime, scan=scan)
    objective = dataclasses.replace(objective, model=objective.model.clone(runtime=runtime))
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    spy = optax.trace(decay=0.0)  # its state is the gradient
    engine = Engine(
        objective, spy, mesh, meshes.rules_named("default"), seed=3, microbatch=microbatch
    )
    state = engine.create()
    batch = make_batch()
    state, metrics = engine.compile_step(batch)(state, meshes.place(batch, mesh))
    return float(metrics["loss"]), jax.device_get(state.opt_state.trace)


@pytest.mark.parametrize(
    ("name", "shape", "scan", "microbatch"),
    [
        ("mlm", (2, 2, 2), False, 8),
        pytest.param("mlm", (8, 1, 1), True, 0, marks=pytest.mark.slow),
        pytest.param("span_corruption", (2, 4, 1), True, 8, marks=pytest.mark.slow),
    ],
)
def test_a_step_on_eight_devices_is_a_step_on_one(
    name: str, shape: tuple[int, int, int], scan: bool, microbatch: int
) -> None:
    # Dropout is on: keys of masking and dropout belong to examples.
    alone, spread = one_step(name, (1, 1, 1), scan, 0), one_step(name, shape, scan, microbatch)
    assert abs(alone[0] - spread[0]) <= 2e-5 * alone[0]
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(alone[1]))
    for a, b in zip(jax.tree.leaves(alone[1]), jax.tree.leaves(spread[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * largest)


def test_the_loss_is_the_mean_over_all_masked_tokens() -> None:
    objective = objectives("float32")["mlm"]
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    original = make_batch()
    batch = jax.jit(objective.prepare)(original, jax.random.key(1))
    loss, aux = jax.jit(lambda v, b: objective.loss(v, b, jax.random.key(2), False))(
        variables, batch
    )
    module = objective.module

    @jax.jit
    def everywhere(variables: Any) -> Any:
        hidden = module.apply(variables, batch["tokens"], batch["tokens_length"]).last
        return module.apply(variables, hidden, method="mlm_logits")

    logits = np.asarray(everywhere(variables), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses, hits = [], []
    for i in range(SIZE):
        for place, weight in zip(batch["positions"][i], batch["weights"][i], strict=True):
            if weight > 0:
                label = original["tokens"][i, place]
                losses.append(-log_p[i, place, label])
                hits.append(logits[i, place].argmax() == label)
    assert len(losses) > SIZE
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(aux["masked_accuracy"], np.mean(hits), rtol=1e-5)


def test_a_batch_without_any_label_has_no_loss_and_no_gradient() -> None:
    objective = objectives("float32")["mlm"]
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    ids = np.full((2, LENGTH), VOCABULARY.unk, np.int32)
    batch = {"tokens": ids, "tokens_length": np.full(2, LENGTH, np.int32)}

    @jax.jit
    @jax.value_and_grad
    def run(variables: Any) -> Any:
        ready = objective.prepare(batch, jax.random.key(1))
        return objective.loss(variables, ready, jax.random.key(2), False)[0]

    loss, gradient = run(variables)
    assert loss == 0
    assert all(np.isfinite(x).all() and not x.any() for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", NAMES)
def test_the_objectives_keep_the_contract(name: str) -> None:
    objective = objectives("float32")[name]
    assert isinstance(objective, Objective) and objective.splittable
    exported = objective.export(jax.eval_shape(objective.init, jax.random.key(0)))[1]
    assert "mlm_head" not in exported
    Optimizer(frozen=("layers/0/",)).build(10, nn.unbox(exported))


@pytest.mark.parametrize("name", QUICK_MLM)
def test_a_few_steps_on_one_batch_learn_it(name: str) -> None:
    objective = objectives("float32")[name]
    mesh = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
    optimizer = Optimizer(learning_rate=0.02, schedule_name="constant")
    params = jax.eval_shape(objective.init, jax.random.key(0))["params"]
    engine = Engine(objective, optimizer.build(40, params), mesh, meshes.rules_named("default"))
    state, batch = engine.create(), make_batch()
    compiled = engine.compile_step(batch)
    placed = meshes.place(batch, mesh)
    losses = []
    for _ in range(40):
        state, metrics = compiled(state, placed)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.85 * losses[0], losses
