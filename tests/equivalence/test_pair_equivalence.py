"""PAIR and cross-encoders: chunked = direct, microbatches add up, eight devices = one."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives import pair, towers
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.objective import Objective
from qac_jax.objectives.pair import Pair
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


SIZE, PER, LENGTH = 16, 2, 8
BERT = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=LENGTH,
)


def objectives(dtype: str) -> dict[str, Any]:
    runtime = Runtime(dtype=dtype, dropout="hash")
    dual = DualEncoder(DualEncoderConfig(BERT), runtime)
    cross = CrossEncoder(BERT, runtime, labels=2)
    return {
        "paper": Pair(dual, alpha=0.3),
        "official": Pair(dual, alpha=0.3, denominator="official_code", negatives_group=8),
        "pointwise": Pointwise(cross),
        "adversarial": Pointwise(cross, adversarial_step=0.5),
        "localized": Localized(cross.clone(labels=1)),
    }


def texts(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = rng.integers(3, LENGTH + 1, shape).astype(np.int32)
    ids = rng.integers(5, 60, (*shape, LENGTH))
    return np.where(np.arange(LENGTH) < lengths[..., None], ids, 0).astype(np.int32), lengths


def make_batch(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {"label": rng.integers(0, 2, SIZE).astype(np.int32)}
    for name, shape in {
        "query": (SIZE,),
        "passages": (SIZE, PER),
        "pair": (SIZE,),
        "pairs": (SIZE, PER),
    }.items():
        batch[name], batch[f"{name}_length"] = texts(rng, *shape)
        types = np.arange(LENGTH) >= rng.integers(1, 4, (*shape, 1))
        batch[f"{name}_types"] = types.astype(np.int32)
    return batch


def differentiated(objective: Any, batch: Any, variables: Any = None) -> tuple[Any, Any]:
    """(loss, gradients) with dropout, in float64."""
    if variables is None:
        variables = jax.tree.map(
            lambda x: x.astype(jnp.float64), nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
        )

    @jax.jit
    def run(variables: Any) -> Any:
        def loss(variables: Any) -> Any:
            return objective.loss(variables, batch, jax.random.key(2), True)[0]

        return jax.value_and_grad(loss)(variables)

    return jax.device_get(run(variables))


def assert_same(found: Any, expected: Any) -> None:
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
    assert largest > 1e-4
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * largest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "adversarial"])
def test_chunks_are_the_whole(name: str) -> None:
    with jax.enable_x64(True):
        objective = objectives("float64")[name]
        assert not objective.splittable
        batch = jax.jit(objective.prepare)(make_batch(), jax.random.key(1))
        cut: dict[str, int] = {"chunk": 4}
        if name == "paper":  # scoring some queries at a time, too
            cut["rows"] = 4
        whole = differentiated(objective, batch)
        assert_same(differentiated(dataclasses.replace(objective, **cut), batch), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["localized", "pointwise"])
def test_microbatches_add_up(name: str) -> None:
    with jax.enable_x64(True):
        objective = objectives("float64")[name]
        assert objective.splittable
        batch = jax.jit(objective.prepare)(make_batch(), jax.random.key(1))
        halves = [
            differentiated(objective, jax.tree.map(lambda x, i=i: x[i : i + 8], batch))
            for i in (0, 8)
        ]
        assert_same(jax.tree.map(lambda a, b: a + b, *halves), differentiated(objective, batch))


def one_step(name: str, shape: tuple[int, int, int], chunk: int) -> Any:
    objective = dataclasses.replace(objectives("float32")[name], chunk=chunk)
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    engine = Engine(objective, optax.trace(decay=0.0), mesh, meshes.rules_named("default"), seed=3)
    state, batch = engine.create(), make_batch()
    state, metrics = engine.compile_step(batch)(state, meshes.place(batch, mesh))
    return float(metrics["loss"]), jax.device_get(state.opt_state.trace)


@pytest.mark.parametrize(
    ("name", "shape", "chunk"),
    [
        ("paper", (8, 1, 1), 0),
        pytest.param("official", (2, 2, 2), 8, marks=pytest.mark.slow),
        pytest.param("adversarial", (4, 2, 1), 8, marks=pytest.mark.slow),
        pytest.param("localized", (8, 1, 1), 0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_eight_devices_are_one(name: str, shape: tuple[int, int, int], chunk: int) -> None:
    alone, spread = one_step(name, (1, 1, 1), 0), one_step(name, shape, chunk)
    assert abs(alone[0] - spread[0]) <= 2e-5 * alone[0]
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(alone[1]))
    for a, b in zip(jax.tree.leaves(alone[1]), jax.tree.leaves(spread[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * largest)


def test_the_loss_is_the_weighted_sum_of_both() -> None:
    objective = objectives("float32")["paper"]
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    batch = objective.prepare(make_batch(), jax.random.key(1))

    @jax.jit
    def run(variables: Any) -> Any:
        loss, aux = objective.loss(variables, batch, jax.random.key(2), False)
        alone = dataclasses.replace(objective, alpha=0.0)
        query_loss, query_aux = alone.loss(variables, batch, jax.random.key(2), False)
        return loss, aux, query_loss, query_aux

    loss, aux, query_loss, query_aux = run(variables)
    assert set(query_aux) == {"query_loss", "accuracy"}
    np.testing.assert_allclose(query_loss, aux["query_loss"], rtol=1e-6)
    np.testing.assert_allclose(loss, 0.7 * aux["query_loss"] + 0.3 * aux["passage_loss"], rtol=1e-6)


def test_both_losses_have_the_temperature() -> None:
    objective = dataclasses.replace(objectives("float32")["paper"], temperature=0.5)
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    batch = objective.prepare(make_batch(), jax.random.key(1))

    @jax.jit
    def run(variables: Any) -> Any:
        aux = objective.loss(variables, batch, jax.random.key(2), False)[1]
        queries, passages = towers.vectors(objective.model, variables, batch, None, 0)
        given = {"numbers": batch.get("numbers"), "temperature": 0.5}
        return aux, [
            loss(queries, passages, objective.denominator, **given).loss.mean()
            for loss in (pair.query_centric, pair.passage_centric)
        ]

    aux, alone = run(variables)
    np.testing.assert_allclose([aux["query_loss"], aux["passage_loss"]], alone, rtol=1e-6)


def test_the_objectives_keep_the_contract() -> None:
    made = objectives("float32")
    assert [n for n, found in made.items() if isinstance(found, Objective)] == list(made)
    assert set(pair.DENOMINATORS) == {
        "paper_inbatch_and_hard",
        "hard_from_all_only",
        "own_hard_only",
        "official_code",
    }
