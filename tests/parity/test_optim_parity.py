"""Golden case 13: five steps of every optimiser variant, and the learning-rate schedules."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qac_jax.training import optimizers
from qac_jax.training.optimizers import Optimizer


# What a variant's name is made of: a base, then suffixes.
BASES = {
    "adamw_torch": "adamw",
    "adamw_hf": "adamw_hf",
    "lamb_paddle33": "lamb",
    "lamb_formula": "lamb",
    "lamb_paddle18_no_bias_correction": "lamb_paddle18",
}
# Paddle keeps its hyper-parameters in float32, torch and the formulas do not.
X64_RTOL = {"lamb_paddle33": 1e-6}
SCHEDULES = ("hf_linear_schedule", "rocketqa_schedule", "paddle_poly", "adamw_lr_used")


def parse(variant: str) -> tuple[str, str]:
    """(base, suffixes); a variant that is not understood fails its test."""
    base = next((name for name in BASES if variant.startswith(name)), "")
    suffixes = variant.removeprefix(base)
    known = base and re.fullmatch("(_noclip|_no_schedule|_clip)*", suffixes)
    assert known, f"variant {variant!r} is not understood"
    return base, suffixes


def steps() -> list[Any]:
    """(case, variant, precision) of every run that a case holds, and it holds what it lists."""
    found = []
    assert golden.cases("13_"), "no case 13"
    for case in golden.cases("13_"):
        meta, arrays = golden.load(case)
        names = {
            (name.split("__")[0], name.endswith("__f64")) for name in arrays if "__step" in name
        }
        assert {name.replace("[_clip]", "") for name in meta["variants"]} <= {n for n, _ in names}
        for variant, double in sorted(names):
            precision = "float64" if double else "float32"
            found.append(pytest.param(case, variant, precision, id=f"{variant}-{precision}"))
    return found


def optimizer(meta: Mapping[str, Any], variant: str) -> tuple[Optimizer, int]:
    """The variant's optimiser, and how many steps its schedule counts on."""
    base, suffixes = parse(variant)
    adamw, lamb = meta["adamw_hyper"], BASES[base].startswith("lamb")
    hyper: dict[str, Any] = meta["lamb_hyper"] if lamb else adamw
    same: dict[str, Any] = {"name": BASES[base], "learning_rate": hyper["lr"], "eps": hyper["eps"]}
    if lamb:
        return Optimizer(
            **same,
            b1=hyper["beta1"],
            b2=hyper["beta2"],
            weight_decay=hyper["lamb_weight_decay"],
            no_decay=(),
            clip_norm=hyper.get("clip", adamw["clip"]) if "_clip" in suffixes else 0.0,
            clip_epsilon=0.0,
            schedule_name="constant",
        ), 100
    constant = "_no_schedule" in suffixes
    return Optimizer(
        **same,
        b1=hyper["betas"][0],
        b2=hyper["betas"][1],
        weight_decay=hyper["weight_decay"],
        no_decay=tuple(f"^{name}$".replace(".", r"\.") for name in meta["not_decayed"]),
        clip_norm=0.0 if "_noclip" in suffixes else hyper["clip"],
        schedule_name="constant" if constant else "linear",
        warmup_steps=0 if constant else hyper["warmup"],
    ), hyper["total"]


@pytest.mark.parametrize(("case", "variant", "precision"), steps())
def test_optimizer_steps(case: Path, variant: str, precision: str) -> None:
    meta, arrays = golden.load(case)
    chosen, total = optimizer(meta, variant)
    suffix = "__f64" if precision == "float64" else ""
    names = [name.removeprefix("param0__") for name in arrays if name.startswith("param0__")]
    assert sorted(names) == sorted(meta["decayed"] + meta["not_decayed"])
    count = sum(f"{variant}__step{k}__{names[0]}{suffix}" in arrays for k in range(1, 1000))
    assert count

    with golden.precision_context(precision):
        params = {name: jnp.asarray(arrays[f"param0__{name}"], precision) for name in names}
        tx = chosen.build(total, params)
        state = tx.init(params)

        @jax.jit
        def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for k in range(1, count + 1):
            grads = {n: jnp.asarray(arrays[f"grad{k - 1}__{n}"], precision) for n in names}
            params, state = step(params, state, grads)
            for name in names:
                what = f"{variant}__step{k}__{name}{suffix}"
                if precision == "float64":
                    assert params[name].dtype == np.float64
                    rtol, atol = X64_RTOL.get(parse(variant)[0], 1e-12), 1e-14
                else:
                    rtol, atol = 1e-5, 1e-7
                np.testing.assert_allclose(
                    np.asarray(params[name]), arrays[what], rtol=rtol, atol=atol, err_msg=what
                )


@pytest.mark.parametrize("case", golden.parameters("13_"))
def test_schedules(case: Path) -> None:
    meta, arrays = golden.load(case)
    for name in SCHEDULES:
        paddle = name in ("rocketqa_schedule", "paddle_poly")
        hyper = meta["rocketqa_schedule" if paddle else "adamw_hyper"]
        warmup = 0 if name == "paddle_poly" else hyper["warmup"]
        with jax.enable_x64(True):
            kind = "paddle_jump" if paddle else "linear"
            rate = optimizers.schedule(kind, hyper["lr"], hyper["total"], warmup)
            steps = np.arange(len(arrays[name]))
            rates = np.asarray(jax.jit(jax.vmap(rate))(steps))
        np.testing.assert_allclose(rates, arrays[name], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose([float(rate(int(t))) for t in steps], arrays[name], rtol=1e-6)
