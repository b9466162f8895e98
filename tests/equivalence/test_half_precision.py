"""Half precision: kernels are cast once a step, which changes nothing; gradients of logits.

Mixed precision: products of bfloat16 numbers, all else fp32.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_pretraining as toy
from toy_objectives import batch_for, engine, objective, one_step

from qac_jax import hardware
from qac_jax.models.heads import tied_logits
from qac_jax.models.layers import Dense, Runtime
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.training import step as steps
from qac_jax.training.step import cast_kernels


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


@pytest.mark.slow
def test_a_step_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient() -> Any:
        made = engine(objective("mlm", "bfloat16", BERT), microbatch=8)
        figures, gradient, _ = one_step(made, batch_for("mlm"))
        return np.float32(figures["loss"]), gradient

    once = gradient()
    monkeypatch.setattr(steps, "cast_kernels", lambda params, dtype: params)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(gradient()), strict=True):
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


def test_mixed_products_round_what_they_multiply() -> None:
    """Values and gradients are those of rounded numbers, summed in fp32."""
    rng = np.random.default_rng(0)
    x, weights = (rng.normal(size=shape).astype("f") for shape in ((2, 6, 16), (2, 6, 8)))
    dense = Dense(8, ("embed", "mlp"), jnp.dtype("float32"), mixed=True)
    params = {"kernel": rng.normal(size=(16, 8)).astype("f"), "bias": np.ones(8, "f")}

    def total(params: Any, x: Any) -> Any:
        y = dense.apply({"params": params}, x)
        return (y * weights).sum(), y

    (of_params, of_x), y = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x)
    a, b, g = (np.asarray(v, "bfloat16").astype("d") for v in (x, params["kernel"], weights))
    np.testing.assert_allclose(y, a @ b + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, g @ b.T, rtol=1e-5, atol=1e-5)
    expected = np.einsum("blx,bly->xy", a, g)
    np.testing.assert_allclose(of_params["kernel"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_params["bias"], weights.sum((0, 1)), rtol=1e-5)
    assert y.dtype == of_x.dtype == of_params["kernel"].dtype == np.float32


@pytest.mark.slow
def test_a_mixed_model_is_nearly_the_same() -> None:
    batch = batch_for("condenser")

    def gradient(dtype: str) -> Any:
        mlm = Mlm(BERT.build(Runtime(dtype)), Masking(0.3), toy.VOCABULARY)
        variables = jax.jit(mlm.init)(jax.random.key(0))

        def loss(params: Any) -> Any:
            ready = mlm.prepare(batch, jax.random.key(1))
            return mlm.loss({"params": params}, ready, jax.random.key(2), True)[0]

        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(variables["params"]))

    for mixed, exact in zip(gradient("mixed"), gradient("float32"), strict=True):
        assert mixed.dtype == exact.dtype == np.float32
        assert np.abs(mixed - exact).max() <= 0.03 * np.abs(exact).max() + 1e-6
        assert (mixed != exact).any() or not exact.any()


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx512_bf16 sse", True), ("amx_bf16", True), ("avx512f", False)]
)
def test_cpus_that_multiply_bfloat16(tmp_path: Path, flags: str, expected: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\nflags\t\t: {flags}\n\nprocessor : 1\nflags : amx_bf16\n")
    hardware.multiplies_bfloat16.cache_clear()
    assert hardware.multiplies_bfloat16(str(file)) is expected
    assert not hardware.multiplies_bfloat16(str(tmp_path / "nothing"))


@pytest.mark.parametrize("able", [False, True])
def test_what_precisions_mean(monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    monkeypatch.setattr(hardware, "multiplies_bfloat16", lambda: able)
    assert hardware.precision_on("cpu", "auto") == "float32"
    assert hardware.precision_on("cpu", "fast") == ("mixed" if able else "float32")
    for given in (("gpu", "auto"), ("gpu", "fast"), ("cpu", "bfloat16")):
        assert hardware.precision_on(*given) == "bfloat16"
