"""Learning rate over steps. Step t (from 0) is the t-th update; `total` updates are made.

Warm-up rises from 0, so the first update changes nothing: Hugging Face's and RocketQA's rules both
start at t / warmup.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError, nearest
from qac_jax.training.settings import SCHEDULES


Schedule = Callable[[jax.Array | int], jax.Array]


def warmup_steps(name: str, total: int, ratio: float, steps: int) -> int:
    """Steps of warm-up: `steps` if set, else the ratio of the total.

    Hugging Face rounds the ratio up, RocketQA (whose schedule is `paddle_jump`) down.
    """
    if steps:
        return steps
    return int(total * ratio) if name == "paddle_jump" else math.ceil(total * ratio)


def make(name: str, peak: float, total: int, warmup: int, floor: float = 0.0) -> Schedule:
    """The schedule `name`; linear and cosine end at the share `floor` of the peak."""
    if name not in SCHEDULES:
        raise UserError(f"schedule_name={name!r} is not known; {nearest(name, SCHEDULES)}")
    if warmup > total:
        raise UserError(
            f"warm-up of {warmup} steps is longer than the {total} steps of the run; "
            "shorten it or train longer"
        )

    def share(step: jax.Array) -> jax.Array:
        """The share of the peak after the warm-up."""
        done = jnp.clip((step - warmup) / max(1, total - warmup), 0.0, 1.0)
        if name == "linear":
            return floor + (1.0 - floor) * (1.0 - done)
        if name == "cosine":
            return floor + (1.0 - floor) * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        if name == "paddle_jump":
            # Decayed from step 0, so the rate jumps where the warm-up ends (Paddle's decay).
            return 1.0 - jnp.minimum(step, total) / total
        return jnp.ones_like(done)

    def rate(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step).astype(float)  # fp64 where JAX runs in x64
        return peak * jnp.where(step < warmup, step / max(1, warmup), share(step))

    return rate
