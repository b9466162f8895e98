"""A greedy decoder for tests of the cache: the smallest loop that uses it as generation does."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qac_jax.models.t5 import T5


def greedy(
    module: T5, variables: dict, ids: np.ndarray, lengths: np.ndarray, steps: int, *, stop: bool
) -> np.ndarray:
    """[B, steps + 1] token ids from the start token; with stop, padding after a row's end."""
    return np.asarray(_run(module, steps)(variables, ids, lengths, stop))


@functools.cache
def _run(module: T5, steps: int) -> Callable:
    config = module.config

    @jax.jit
    def run(variables: dict, ids: jax.Array, lengths: jax.Array, stop: jax.Array) -> jax.Array:
        memory = module.apply(variables, ids, lengths, method="encode")
        cache = module.apply(variables, memory, lengths, steps, method="init_cache")

        def step(state, _):
            token, done, cache = state
            logits, cache = module.apply(variables, token, cache, method="step")
            logits = jnp.where(stop, logits, logits.at[:, config.eos_id].set(-jnp.inf))
            token = jnp.where(done, config.pad_id, logits.argmax(-1)).astype(token.dtype)
            return (token, done | (stop & (token == config.eos_id)), cache), token

        start = jnp.full(len(ids), config.start_id, jnp.int32)
        done = jnp.zeros(len(ids), bool)
        _, tokens = lax.scan(step, (start, done, cache), length=steps)
        return jnp.concatenate([start[:, None], tokens.T], axis=1)

    return run
