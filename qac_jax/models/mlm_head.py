"""Word predictions: a head tied to the word embeddings, logits over a padded vocabulary.

Parameters of `MlmHead`: {"dense", "norm", "bias"}.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.models.layers import (
    Array,
    Dense,
    LayerNorm,
    Runtime,
    activation,
    parameter,
    statistics_dtype,
)


_LANES = 128


class MlmHead(nn.Module):
    """Dense, activation, norm, then the word embedding as output matrix, plus a bias a word.

    The dense layer gives the width of the word embeddings. activation: None for the model's own.
    """

    config: Any
    runtime: Runtime
    activation: str | None = None

    @nn.compact
    def __call__(self, hidden: Array, table: Array, padded: bool = False) -> Array:
        config, dtype = self.config, self.runtime.compute_dtype
        init = nn.initializers.normal(config.initializer_range)
        width = table.shape[-1]
        x = Dense(width, ("embed", None), dtype, init, name="dense")(hidden)
        x = activation(self.activation or config.activation)(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="norm")(x)
        zeros = nn.initializers.zeros_init()
        bias = parameter(self, "bias", zeros, (config.vocab_size,), ("vocab",))
        return tied_logits(x, table, bias, padded)


def tied_logits(x: Array, table: Array, bias: Array | None, padded: bool) -> Array:
    """x table^T + bias in at least fp32, [..., V].

    Computed over a vocabulary padded to a multiple of 128 (what tensor cores and an even
    split over devices want). padded=True gives all of it, the surplus words at the lowest
    number of the dtype, so that a softmax over it is the softmax over the real words.
    """
    words = table.shape[0]
    surplus = -words % _LANES
    wide = statistics_dtype(x.dtype)
    table = jnp.pad(table.astype(x.dtype), ((0, surplus), (0, 0)))
    flat = x.reshape(-1, x.shape[-1])
    logits = jnp.matmul(flat, table.T, preferred_element_type=wide)
    logits = logits.reshape(*x.shape[:-1], words + surplus)
    if bias is not None:
        logits = logits + jnp.pad(bias.astype(wide), (0, surplus))
    if not padded:
        return logits[..., :words]
    return jnp.where(jnp.arange(words + surplus) < words, logits, jnp.finfo(wide).min)
