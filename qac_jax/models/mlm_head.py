"""Word predictions: a head tied to the word embeddings, logits over a padded vocabulary.

Parameters of `MlmHead`: {"dense", "norm", "bias"}.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from qac_jax.models.layers import (
    Array,
    LayerNorm,
    Runtime,
    activation,
    dense_of,
    matmul,
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
        x = dense_of(self.runtime, width, ("embed", None), init, name="dense")(hidden)
        x = activation(self.activation or config.activation)(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="norm")(x)
        zeros = nn.initializers.zeros_init()
        bias = parameter(self, "bias", zeros, (config.vocab_size,), ("vocab",))
        return tied_logits(x, table, bias, padded, self.runtime.mixed)


def tied_logits(
    x: Array, table: Array, bias: Array | None, padded: bool, mixed: bool = False
) -> Array:
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
    if mixed:
        logits = matmul(flat, table.T, mixed)
    else:
        logits = (_half_product if flat.dtype.itemsize < 4 else _product)(flat, table)
    logits = logits.reshape(*x.shape[:-1], words + surplus)
    if bias is not None:
        logits = logits + jnp.pad(bias.astype(wide), (0, surplus))
    if not padded:
        return logits[..., :words]
    return jnp.where(jnp.arange(words + surplus) < words, logits, jnp.finfo(wide).min)


def _product(x: Array, table: Array) -> Array:
    """x [N, D] times table [V, D], transposed, in at least fp32."""
    return jnp.matmul(x, table.T, preferred_element_type=statistics_dtype(x.dtype))


@jax.custom_vjp
def _half_product(x: Array, table: Array) -> Array:
    """The same of half precision, whose gradients too are products of half precision.

    The logits' gradient would otherwise be fp32, and with it both products of the backward pass,
    the largest of a step: a GPU computes these at a fraction of its rate.
    """
    return _product(x, table)


def _half_forward(x: Array, table: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, table), (x, table)


def _half_backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, table = inputs
    half = gradient.astype(x.dtype)
    return jnp.matmul(half, table), jnp.matmul(half.T, x)


_half_product.defvjp(_half_forward, _half_backward)
