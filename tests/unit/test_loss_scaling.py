"""float16: the loss is scaled, steps whose gradient overflows are skipped, the scale adapts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
import toy_half

from qac_jax.models.layers import Runtime
from qac_jax.training import mesh as meshes
from qac_jax.training import train
from qac_jax.training.checkpoints import plain
from qac_jax.training.optimizers import freeze
from qac_jax.training.step import LARGEST, LEAST, LOSS_SCALE, Engine, Scaling, overflows


def engine(
    objective: Any, *, data: int = 1, frozen: tuple[str, ...] = (), **options: Any
) -> Engine:
    mesh = meshes.make_mesh((data, 1, 1), jax.devices()[:data])
    params = train.abstract_params(objective)
    tx = freeze(optax.adam(1e-2), frozen, params) if frozen else optax.adam(1e-2)
    return Engine(objective, tx, mesh, meshes.rules_named("default"), frozen=frozen, **options)


def test_doubles_after_good_steps_and_halves_at_once() -> None:
    rule = Scaling(8.0, period=2)
    scale, seen = rule.start(), []
    for finite in (True, True, True, False, True, False, False, False, False, False):
        scale = rule.after(scale, jnp.asarray(finite))
        seen.append((float(scale["value"]), int(scale["good"])))
    assert seen[:6] == [(8, 1), (16, 0), (16, 1), (8, 0), (8, 1), (4, 0)]
    assert seen[-1] == (LEAST, 0)
    full = {"value": jnp.float32(LARGEST), "good": jnp.int32(1)}
    assert float(rule.after(full, jnp.asarray(True))["value"]) == LARGEST


def test_what_the_scale_is_to_blame_for() -> None:
    nan, infinite = float("nan"), float("inf")
    cases = [(1.0, infinite, 4.0), (1.0, nan, LEAST), (nan, nan, 4.0), (1.0, 1.0, 4.0)]
    assert [bool(overflows(*case)) for case in cases] == [True, False, False, False]


def test_other_precisions_have_no_scale() -> None:
    abstract = engine(toy.ToyMlm()).abstract
    assert abstract.scale is None
    # So their checkpoints are what they were.
    assert set(plain(abstract)) == {"step", "variables", "opt_state", "skipped"}
    assert "scale" in plain(engine(toy_half.Mlm()).abstract)


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (toy_half.Mlm(), {"ema": 0.5}),
        pytest.param(
            toy_half.Mlm(),
            {"data": 2, "microbatch": 8, "frozen": ("up",), "max_skips": 1},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            toy_half.Contrastive(chunk=4, stateful=True), {"data": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=["whole", "accumulated", "chunked"],
)
def test_a_step_that_overflows_changes_nothing_but_the_scale(objective: Any, options: Any) -> None:
    run = engine(objective, scaling=Scaling(2.0**24, period=3), **options)
    state, step = run.create(), run.compile_step(toy.batch(16))
    scales, moved = [], 0
    for number in range(1, 16):
        before = jax.device_get(state)
        state, metrics = step(state, meshes.place(toy.batch(16), run.mesh))
        after = jax.device_get(state)
        scales.append(float(metrics[LOSS_SCALE]))
        assert int(after.step) == number and np.isfinite(metrics["loss"])
        if np.isfinite(metrics["grad_norm"]):
            moved += 1
            assert np.any(after.params["table"] != before.params["table"])
            continue
        for part in ("variables", "opt_state", "ema", "skipped"):
            jax.tree.map(np.testing.assert_array_equal, getattr(after, part), getattr(before, part))
        assert after.scale["value"] == before.scale["value"] / 2 and after.scale["good"] == 0
    assert scales[0] == 2.0**24 and scales[1] == 2.0**23 and moved >= 5
    assert any(b == 2 * a for a, b in zip(scales, scales[1:], strict=False))  # grown again
    assert int(state.skipped) == 0
    if "frozen" in options:
        np.testing.assert_array_equal(state.params["up"], run.create().params["up"])
    if objective.splittable is False:
        assert int(state.variables["queue"]["seen"]) == 16 * moved


def test_a_loss_that_is_not_finite_counts_as_skipped() -> None:
    run = engine(dataclasses.replace(toy_half.Mlm(), explode_at=2), scaling=Scaling(1024.0))
    state, step = run.create(), run.compile_step(toy.batch(16))
    before = jax.device_get(state.params)
    state, _ = step(state, meshes.place(toy.batch(16), run.mesh))
    assert int(state.skipped) == 1 and float(state.scale["value"]) == 512.0
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), before)


@pytest.mark.slow
def test_scaling_changes_no_gradient() -> None:
    """A model that computes in float32 whatever its runtime says has the same step."""
    half = toy.ToyMlm(toy.Net(runtime=Runtime("float16")))
    results = []
    for objective in (half, toy.ToyMlm()):
        run = engine(objective)
        state, step = run.create(), run.compile_step(toy.batch(16))
        state, metrics = step(state, meshes.place(toy.batch(16), run.mesh))
        results.append(jax.device_get((state.opt_state, metrics["loss"], metrics["grad_norm"])))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
