"""Golden case 13: five steps of every optimiser variant, and the learning-rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import golden_cases
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
SUFFIXES = ("_noclip", "_no_schedule", "_clip")
# Paddle keeps its hyper-parameters in float32, torch and the formulas do not.
X64_RTOL = {"lamb_paddle33": 1e-6}
# Arrays that are no parameters, gradients or steps: everything else must be a known schedule.
SCHEDULES = ("hf_linear_schedule", "rocketqa_schedule", "paddle_poly", "adamw_lr_used")
OTHER = ("grad_norm_before_clip",)


def parse(variant: str) -> tuple[str, set[str]]:
    """(base, suffixes); a variant that is not understood fails its test."""
    rest, suffixes = variant, set()
    while rest not in BASES:
        suffix = next((s for s in SUFFIXES if rest.endswith(s)), None)
        if suffix is None or suffix in suffixes:
            pytest.fail(f"variant {variant!r} is not understood")
        suffixes.add(suffix)
        rest = rest.removesuffix(suffix)
    return rest, suffixes


def steps() -> list[Any]:
    """(case, variant, precision) of every run that a case holds."""
    found = []
    for case in golden_cases.cases("13_"):
        arrays = golden_cases.load(case)[1]
        runs = {
            (name.split("__")[0], "float64" if name.endswith("__f64") else "float32")
            for name in arrays
            if "__step" in name
        }
        found += [pytest.param(case, v, p, id=f"{case.name}-{v}-{p}") for v, p in sorted(runs)]
    return found or [pytest.param(golden_cases.root() / "13_-is-missing", "", "float32")]


def optimizer(meta: Mapping[str, Any], variant: str) -> tuple[Optimizer, int]:
    """The variant's optimiser, and how many steps its schedule counts on."""
    base, suffixes = parse(variant)
    if BASES[base].startswith("lamb"):
        hyper = meta["lamb_hyper"]
        clip = hyper.get("clip", meta["adamw_hyper"]["clip"]) if "_clip" in suffixes else 0.0
        return Optimizer(
            name=BASES[base],
            learning_rate=hyper["lr"],
            b1=hyper["beta1"],
            b2=hyper["beta2"],
            eps=hyper["eps"],
            weight_decay=hyper["lamb_weight_decay"],
            no_decay=(),
            clip_norm=clip,
            clip_epsilon=0.0,
            schedule_name="constant",
        ), 100
    hyper = meta["adamw_hyper"]
    return Optimizer(
        name=BASES[base],
        learning_rate=hyper["lr"],
        b1=hyper["betas"][0],
        b2=hyper["betas"][1],
        eps=hyper["eps"],
        weight_decay=hyper["weight_decay"],
        no_decay=tuple(f"^{name}$".replace(".", r"\.") for name in meta["not_decayed"]),
        clip_norm=0.0 if "_noclip" in suffixes else hyper["clip"],
        schedule_name="constant" if "_no_schedule" in suffixes else "linear",
        warmup_steps=0 if "_no_schedule" in suffixes else hyper["warmup"],
    ), hyper["total"]


def test_the_case_holds_what_it_lists() -> None:
    cases = golden_cases.cases("13_")
    assert cases
    for case in cases:
        meta, arrays = golden_cases.load(case)
        held = {name.split("__")[0] for name in arrays if "__step" in name}
        listed = {name.replace("[_clip]", "") for name in meta["variants"]}
        assert listed <= held
        lonely = {name.split("__")[0] for name in arrays} - held
        lonely -= {"param0", *SCHEDULES, *OTHER}
        assert all(name.startswith("grad") for name in lonely), lonely


@pytest.mark.parametrize(("case", "variant", "precision"), steps())
def test_optimizer_steps(case: Path, variant: str, precision: str) -> None:
    meta, arrays = golden_cases.load(case)
    chosen, total = optimizer(meta, variant)
    suffix = "__f64" if precision == "float64" else ""
    names = [name.removeprefix("param0__") for name in arrays if name.startswith("param0__")]
    assert sorted(names) == sorted(meta["decayed"] + meta["not_decayed"])
    count = sum(f"{variant}__step{k}__{names[0]}{suffix}" in arrays for k in range(1, 1000))
    assert count

    with golden_cases.precision_context(precision):
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


@pytest.mark.parametrize("case", golden_cases.parameters("13_"))
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(case: Path, name: str) -> None:
    meta, arrays = golden_cases.load(case)
    hyper = meta[
        "rocketqa_schedule" if name in ("rocketqa_schedule", "paddle_poly") else "adamw_hyper"
    ]
    kind = "linear" if name in ("hf_linear_schedule", "adamw_lr_used") else "paddle_jump"
    warmup = 0 if name == "paddle_poly" else hyper["warmup"]
    with jax.enable_x64(True):
        rate = optimizers.schedule(kind, hyper["lr"], hyper["total"], warmup)
        steps = np.arange(len(arrays[name]))
        rates = np.asarray(jax.jit(jax.vmap(rate))(steps))
    np.testing.assert_allclose(rates, arrays[name], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose([float(rate(int(t))) for t in steps], arrays[name], rtol=1e-6)


@pytest.mark.parametrize("case", golden_cases.parameters("13_"))
def test_the_two_lambs_are_told_apart(case: Path) -> None:
    _, arrays = golden_cases.load(case)
    name = next(n for n in arrays if n.startswith("lamb_formula__step5__"))
    other = name.replace("lamb_formula", "lamb_paddle18_no_bias_correction")
    assert np.abs(arrays[name] - arrays[other]).max() > 1e-6


def test_an_unknown_variant_fails() -> None:
    for variant in ("sgd", "lamb_paddle33_clip_clip", "adamw_torch_amsgrad"):
        with pytest.raises(pytest.fail.Exception, match="not understood"):
            parse(variant)
