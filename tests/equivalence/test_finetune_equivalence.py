"""Fine-tuning: chunked = direct, and eight devices = one."""

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
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.finetune import Finetune
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


Q, P, LENGTH = 16, 3, 8
BERT = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=LENGTH,
)


def objective(dtype: str = "float32", **changes: Any) -> Finetune:
    settings = {"temperature": 0.1, "distillation": "kl", "distillation_weight": 0.3}
    config = DualEncoderConfig(BERT, tied=False, normalize=True)
    module = DualEncoder(config, Runtime(dtype=dtype, dropout="hash"))
    return Finetune(module, **{**settings, **changes})


def make_batch(size: int = Q) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    batch: dict[str, np.ndarray] = {"scores": rng.normal(size=(size, P)).astype(np.float32)}
    for name, shape in (("query", (size,)), ("passages", (size, P))):
        batch[name] = rng.integers(5, 60, (*shape, LENGTH), dtype=np.int32)
        batch[f"{name}_length"] = rng.integers(3, LENGTH + 1, shape, dtype=np.int32)
    batch["passages"][5, 1], batch["passages_length"][5, 1] = 0, 3  # the same in two places
    batch["passages"][2, 0], batch["passages_length"][2, 0] = 0, 3
    return batch


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.slow
def test_chunked_is_direct(rows: int) -> None:
    """With dropout on: the second pass replays the keys."""
    with jax.enable_x64(True):
        direct = objective("float64")
        variables = jax.tree.map(
            lambda x: x.astype(jnp.float64), nn.unbox(jax.jit(direct.init)(jax.random.key(0)))
        )
        batch = direct.prepare(make_batch(), jax.random.key(1))

        def run(objective: Finetune) -> Any:
            def loss(variables: Any) -> Any:
                return objective.loss(variables, batch, jax.random.key(2), True)

            return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)

        whole, parts = run(direct), run(dataclasses.replace(direct, chunk=4, rows=rows))
        largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(whole[1]))
        assert largest > 1e-3
        for a, b in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * largest)


def one_step(shape: tuple[int, int, int], chunk: int = 0, size: int = Q) -> Any:
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    spy = optax.trace(decay=0.0)  # its state is the gradient
    engine = Engine(objective(chunk=chunk), spy, mesh, meshes.rules_named("default"), seed=3)
    state = engine.create()
    batch = make_batch(size)
    state, metrics = engine.compile_step(batch)(state, meshes.place(batch, mesh))
    return float(metrics["loss"]), jax.device_get(state.opt_state.trace)


@pytest.fixture(scope="module")
def alone() -> Any:
    return one_step((1, 1, 1))


@pytest.mark.parametrize(
    ("shape", "chunk"), [((8, 1, 1), 8), pytest.param((2, 2, 2), 0, marks=pytest.mark.slow)]
)
def test_eight_devices_are_one(shape: tuple[int, int, int], chunk: int, alone: Any) -> None:
    _agree(one_step(shape, chunk), alone)


@pytest.fixture(scope="module")
def alone_with_75() -> Any:
    return one_step((1, 1, 1), size=75)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(8, 1, 1), (4, 1, 2), pytest.param((2, 2, 2), marks=pytest.mark.long)]
)
def test_a_batch_of_75_is_filled_up(shape: tuple[int, int, int], alone_with_75: Any) -> None:
    """Devices share 80 or 76 rows, of which 75 are in the loss; beside a tensor axis too."""
    _agree(one_step(shape, size=75), alone_with_75)


@pytest.mark.slow
def test_a_validation_batch_of_75_is_filled_up() -> None:
    batch, losses = make_batch(75), []
    for count in (1, 8):
        mesh = meshes.make_mesh((-1, 1, 1), jax.devices()[:count])
        engine = Engine(objective(), optax.sgd(0.1), mesh, meshes.rules_named("default"), seed=3)
        measure = engine.compile_measure(batch)
        metrics = measure(engine.create().variables, meshes.place(batch, mesh))
        losses.append([float(metrics[name]) for name in ("loss", "accuracy", "distillation")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def _agree(found: Any, expected: Any) -> None:
    (loss, gradients), (other, theirs_all) = found, expected
    assert loss == pytest.approx(other, rel=1e-5)
    flat = jax.tree.leaves(theirs_all)
    largest = max(float(np.abs(x).max()) for x in flat)
    for ours, theirs in zip(jax.tree.leaves(gradients), flat, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * largest)
