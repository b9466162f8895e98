"""Half precision: kernels are cast once a step, which changes nothing; gradients of logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy_pretraining as toy

from qac_jax.models.layers import Runtime
from qac_jax.models.mlm_head import tied_logits
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.training import mesh as meshes
from qac_jax.training import step as steps
from qac_jax.training.step import Engine, cast_kernels


# Heads of 16: queries are scaled by a power of two, in half precision as exactly as in full.
BERT = dataclasses.replace(toy.BERT, num_layers=1, num_heads=1)


def test_only_kernels_are_cast() -> None:
    leaf = np.zeros((2, 2), np.float32)
    params = {"mlp": {"kernel": leaf, "bias": leaf[0]}, "word": {"embedding": leaf}}
    cast = cast_kernels(params, "bfloat16")
    assert cast["mlp"]["kernel"].dtype == "bfloat16"
    assert cast["mlp"]["bias"] is params["mlp"]["bias"]
    assert cast["word"]["embedding"] is leaf
    assert cast_kernels(params, "float32") is params


def one_step() -> Any:
    model = BERT.build(Runtime("bfloat16", dropout="hash"))
    mesh = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
    spy = optax.trace(decay=0.0)  # its state is the gradient
    objective = Mlm(model, Masking(0.3), toy.VOCABULARY)
    engine = Engine(objective, spy, mesh, meshes.rules_named("default"), microbatch=8)
    batch = toy.batch_for("condenser")
    state, metrics = engine.compile_step(batch)(engine.create(), meshes.place(batch, mesh))
    return jax.device_get((metrics["loss"], state.opt_state.trace))


@pytest.mark.slow
def test_a_step_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    once = one_step()
    monkeypatch.setattr(steps, "cast_kernels", lambda params, dtype: params)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(one_step()), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_gradients_of_logits_in_half_precision() -> None:
    rng = np.random.default_rng(0)
    x, table = rng.normal(size=(24, 16)), rng.normal(size=(40, 16))
    weights = rng.normal(size=(24, 40))

    @jax.jit
    def run(x: Any, table: Any) -> Any:
        def loss(x: Any, table: Any) -> Any:
            return jnp.sum(jnp.sin(tied_logits(x, table, None, False)) * weights)

        return jax.grad(loss, (0, 1))(x, table)

    half = jnp.asarray(x, "bfloat16"), jnp.asarray(table, "bfloat16")
    exact = run(*(a.astype("float32") for a in half))
    for ours, theirs in zip(run(*half), exact, strict=True):
        assert ours.dtype == "bfloat16"
        error = np.asarray(ours, np.float32) - np.asarray(theirs)
        assert np.abs(error).max() < 0.01 * np.abs(theirs).max()
