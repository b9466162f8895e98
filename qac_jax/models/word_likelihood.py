"""log p of given tokens, without the logits of all positions in memory at once.

A batch of texts with 30,000 words to choose from has gigabytes of logits, of which one number a
position is wanted, and none where texts are padded. So positions that count are brought together
and taken a block at a time; a block's logits stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.layers import Array


_BLOCK = 128


def log_likelihood(
    logits: Callable[[Array], Array], hidden: Array, targets: Array, counted: Array
) -> Array:
    """log p of each target [...] where counted [...], elsewhere 0; without gradients.

    logits: [N, D] of hidden [..., D] to scores of all words [N, V], in at least fp32.
    """
    states, words = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    count = words.shape[0]
    places = jnp.argsort(~counted.reshape(-1), stable=True)
    places = jnp.pad(places, (0, -count % _BLOCK), constant_values=count)

    def block(number: Array, found: Array) -> Array:
        here = lax.dynamic_slice_in_dim(places, number * _BLOCK, _BLOCK)
        scores = logits(states.at[here].get(mode="fill", fill_value=0))
        wanted = words.at[here].get(mode="fill", fill_value=0)
        picked = jnp.take_along_axis(scores, wanted[:, None], axis=-1)[:, 0]
        value = picked - jax.nn.logsumexp(scores, axis=-1)
        return found.at[here].set(value, mode="drop")

    like = jax.eval_shape(logits, states[:1])
    blocks = (counted.sum() + _BLOCK - 1) // _BLOCK
    found = lax.fori_loop(0, blocks, block, jnp.zeros(count, like.dtype))
    return jnp.where(counted, found.reshape(targets.shape), 0.0)
