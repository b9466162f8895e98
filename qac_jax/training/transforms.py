"""The parts of the optimisers that Optax lacks, or lacks in the variants that the papers used.

These are transformers' AdamW (epsilon before the bias correction, decay after the update), the
LAMB of Paddle 1.8 (no bias correction; a trust ratio for each stacked layer) and torch's clipping.
Each is a small transformation, so that an optimiser is a chain of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from qac_jax.training.schedules import Schedule


PathTest = Callable[[Any], bool]  # of a leaf's key path
CORRECTIONS = ("torch", "transformers", "none")


def scale_by_moments(
    b1: float, b2: float, eps: float, correction: str
) -> optax.GradientTransformation:
    """Adam's direction: mean of gradients over the root of their mean square.

    correction: `torch` m̂ / (√v̂ + ε); `transformers` m̂ / (√v + ε) · √(1 - b2ᵗ); `none` m / (√v + ε).
    """
    assert correction in CORRECTIONS, correction

    def init(params: Any) -> optax.ScaleByAdamState:
        first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), first, second)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
        first = second = jnp.ones(())
        if correction != "none":
            first, second = _bias_correction(b1, count), _bias_correction(b2, count)
        root = jnp.sqrt(second)
        small = eps / root if correction == "transformers" else jnp.full_like(root, eps)

        def one(m: jax.Array, v: jax.Array) -> jax.Array:
            a, b, c = (x.astype(m.dtype) for x in (first, root, small))
            return (m / a) / (jnp.sqrt(v) / b + c)

        direction = jax.tree.map(one, mu, nu)
        return direction, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _bias_correction(decay: float, count: jax.Array) -> jax.Array:
    """1 - decayᵗ by expm1: in fp32 the plain difference loses three digits at 0.999."""
    if decay == 0.0:
        return jnp.ones(())
    return -jnp.expm1(count.astype(float) * math.log(decay))


def scale_by_trust_ratio(stacked: PathTest, adapted: PathTest) -> optax.GradientTransformation:
    """LAMB (You et al., 2020): each parameter's update is scaled by |p| / |update|.

    `stacked(path)`: whether the leaf has a parameter of every layer along its first axis; each gets
    its own ratio. `adapted(path)`: whether the ratio is applied at all.
    """

    def update(updates: Any, state: optax.EmptyState, params: Any = None):
        def one(path: Any, u: jax.Array, p: jax.Array) -> jax.Array:
            if not adapted(path):
                return u
            axes = tuple(range(int(stacked(path)), u.ndim))
            size = jnp.sqrt(jnp.sum(p * p, axes, keepdims=True))
            step = jnp.sqrt(jnp.sum(u * u, axes, keepdims=True))
            meaningful = (size > 0) & (step > 0)
            return u * jnp.where(meaningful, size / jnp.where(meaningful, step, 1), 1)

        return jax.tree_util.tree_map_with_path(one, updates, params), state

    return optax.GradientTransformation(_no_state, update)


def decay_moved(
    schedule: Schedule, decay: float, decayed: PathTest
) -> optax.GradientTransformation:
    """transformers' AdamW: shrinks parameters *after* the update, p + u, by rate · decay."""

    def update(updates: Any, state: optax.ScaleByScheduleState, params: Any = None):
        shrink = schedule(state.count) * decay

        def one(path: Any, u: jax.Array, p: jax.Array) -> jax.Array:
            return u - shrink.astype(u.dtype) * (p + u) if decayed(path) else u

        updates = jax.tree_util.tree_map_with_path(one, updates, params)
        return updates, optax.ScaleByScheduleState(state.count + 1)

    return optax.GradientTransformation(_start_counting, update)


def clip_by_global_norm(limit: float, epsilon: float = 0.0) -> optax.GradientTransformation:
    """Gradients times min(1, limit / (norm + ε)); ε is 1e-6 in torch, 0 in Paddle and Optax."""

    def update(grads: Any, state: optax.EmptyState, params: Any = None):
        del params
        norm = optax.tree.norm(grads)
        factor = jnp.minimum(1.0, limit / jnp.maximum(norm + epsilon, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads), state

    return optax.GradientTransformation(_no_state, update)


def _no_state(params: Any) -> optax.EmptyState:
    del params
    return optax.EmptyState()


def _start_counting(params: Any) -> optax.ScaleByScheduleState:
    del params
    return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))
