"""Modules over an encoder's hidden states: poolings, word predictions, pre-training heads.

Parameters: of `MlmHead` {"dense", "norm", "bias"}, of a pre-training head {"layers": as in
transformer.py} and, for the causal decoder, {"norm"}.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qac_jax.models import layers
from qac_jax.models.attention import causal_window
from qac_jax.models.layers import Array, LayerNorm, Runtime, activation, shard, statistics_dtype
from qac_jax.models.packing import Keys, Lengths
from qac_jax.models.transformer import INPUT_SITE, Attention, Layers, Mlp


# Poolings by sentence-transformers' names.
POOLINGS = ("cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")


def pool(name: str, hidden: Array, lengths: Array | None, start: int = 0) -> Array:
    """hidden [B, L, D], right-padded to lengths [B] (None: no padding) -> [B, D].

    start: how many of the first tokens (a prompt's, with what stands before it) are left out.
    """
    if name == "cls":
        return hidden[:, start]
    positions = jnp.arange(hidden.shape[1])
    ends = jnp.full(hidden.shape[0], hidden.shape[1]) if lengths is None else lengths
    if name == "lasttoken":
        place = jnp.maximum(ends - 1, 0)[:, None, None]
        return jnp.take_along_axis(hidden, place, axis=1)[:, 0]
    seen = ((positions >= start) & (positions < ends[:, None]))[..., None]
    if name == "max":
        return jnp.where(seen, hidden, jnp.finfo(hidden.dtype).min).max(1)
    if name == "weightedmean":
        # Token i weighs i, from 1 (Muennighoff, 2022, SGPT), whatever prompt is left out.
        weights = jnp.where(seen, (positions + 1.0).astype(hidden.dtype)[:, None], 0)
        return (hidden * weights).sum(1) / jnp.maximum(weights.sum(1), 1)
    total = jnp.where(seen, hidden, 0).sum(1)
    count = jnp.maximum(ends - start, 1)[:, None].astype(hidden.dtype)
    return total / (count if name == "mean" else jnp.sqrt(count))


def mean_pool(hidden: Array, lengths: Array | None) -> Array:
    """The mean over each row's real tokens, special ones included: [B, L, D] -> [B, D]."""
    wide = hidden.astype(statistics_dtype(hidden.dtype))  # sums of long texts exceed float16
    return pool("mean", wide, lengths).astype(hidden.dtype)


def windows(hidden: Array, lengths: Array | None, size: int, start: int = 0) -> Array:
    """Means of `size` tokens in a row, each window half over the next: [B, L, D] -> [B, W, D].

    Late chunking (Günther et al., 2024): parts of a text whose vectors have seen all of it. A text
    has the first `window_counts` of its windows; the others mean nothing.
    """
    count, length, _ = hidden.shape
    lengths = jnp.full(count, length) if lengths is None else lengths
    most = int(window_counts(np.array([length]), size, start)[0])
    first = start + size // 2 * jnp.arange(most)
    begins = jnp.minimum(first, lengths[:, None])
    ends = jnp.minimum(first + size, lengths[:, None])
    sums = jnp.pad(hidden.cumsum(1), ((0, 0), (1, 0), (0, 0)))
    last, before = (jnp.take_along_axis(sums, at[..., None], axis=1) for at in (ends, begins))
    return (last - before) / jnp.maximum(ends - begins, 1)[..., None].astype(hidden.dtype)


def window_counts(lengths: np.ndarray, size: int, start: int = 0) -> np.ndarray:
    """How many windows texts of these lengths have, at least one: the last one reaches the end."""
    step = size // 2
    return -(-np.maximum(lengths - start - (size - step), 1) // step)


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
        x = layers.dense_of(self.runtime, width, ("embed", None), init, name="dense")(hidden)
        x = activation(self.activation or config.activation)(x)
        x = LayerNorm(config.layer_norm_eps, dtype, name="norm")(x)
        zeros = nn.initializers.zeros_init()
        bias = layers.parameter(self, "bias", zeros, (config.vocab_size,), ("vocab",))
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
    if mixed:
        logits = layers.matmul(x, table.T, mixed)
    else:
        product = _half_product if x.dtype.itemsize < 4 else _product
        logits = product(x.reshape(-1, x.shape[-1]), table).reshape(*x.shape[:-1], -1)
    if bias is not None:
        logits = logits + layers.spread(jnp.pad(bias.astype(wide), (0, surplus)), logits)
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

_BLOCK = 128  # positions whose likelihood is computed together


def log_likelihood(
    logits: Callable[[Array], Array], hidden: Array, targets: Array, counted: Array
) -> Array:
    """log p of each target [...] where counted [...], elsewhere 0; without gradients.

    logits: [N, D] of hidden [..., D] to scores of all words [N, V], in at least fp32. Those of all
    positions would take gigabytes, of which one number a position is wanted, and none where texts
    are padded: so positions that count are brought together and taken a block at a time.
    """
    states, words = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    count = words.shape[0]
    places = jnp.argsort(~counted.reshape(-1), stable=True)
    places = jnp.pad(places, (0, -count % _BLOCK), constant_values=count)

    def block(number: Array, found: Array) -> Array:
        chosen = lax.dynamic_slice_in_dim(places, number * _BLOCK, _BLOCK)
        scores = logits(states.at[chosen].get(mode="fill", fill_value=0))
        wanted = words.at[chosen].get(mode="fill", fill_value=0)
        picked = jnp.take_along_axis(scores, wanted[:, None], axis=-1)[:, 0]
        value = picked - jax.nn.logsumexp(scores, axis=-1)
        return found.at[chosen].set(value, mode="drop")

    like = jax.eval_shape(logits, states[:1])
    blocks = (counted.sum() + _BLOCK - 1) // _BLOCK
    found = lax.fori_loop(0, blocks, block, jnp.zeros(count, like.dtype))
    return jnp.where(counted, found.reshape(targets.shape), 0.0)


# Pre-training heads, which make the [CLS] vector hold its text. They read a sequence whose first
# position is that vector and whose other positions are something weaker: early hidden states
# (Condenser) or the embeddings of another text (CoT-MAE). They give hidden states for the encoder's
# own MLM head. `config` is the encoder's.


def with_cls(cls: Array, rest: Array) -> Array:
    """rest [B, L, D] with cls [B, D] in the place of its first position."""
    joined = jnp.concatenate([cls[:, None].astype(rest.dtype), rest[:, 1:]], axis=1)
    return shard(joined, "batch", "length", None)


class _Head(nn.Module):
    config: Any
    runtime: Runtime = Runtime()

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, ...]:
        width = self.config.hidden_size
        return jnp.zeros((1, width)), jnp.zeros((1, 2, width))


class BidirectionalHead(_Head):
    """The encoder's layers over [CLS] and the rest: Condenser's head and CoT-MAE's MLM decoder.

    In Condenser `rest` is hidden state number skip_from of the same text (0: embeddings); in
    CoT-MAE it is `Backbone.embed` of the other text, masked on its own.
    """

    num_layers: int = 2

    def setup(self) -> None:
        self.layers = self.config.stack(self.runtime, self.num_layers)

    def __call__(
        self, cls: Array, rest: Array, lengths: Array | None = None, keys: Array | None = None
    ) -> Array:
        """cls [B, D], rest [B, L, D], lengths of the rest -> hidden [B, L, D]."""
        return self.layers(with_cls(cls, rest), lengths, keys)[0]


class CausalDecoder(_Head):
    """GPT-2 blocks over [CLS] and a text's embeddings: CoT-MAE's released query decoder.

    Position t predicts token t + 1. With a window W it sees itself, the W - 1 positions before
    it and column 0, the passage; -1 is the plain causal decoder.
    """

    num_layers: int = 1
    window: int = -1

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        make = partial(CausalLayer, config, runtime, self.num_layers)
        self.layers = Layers(make, self.num_layers, runtime)
        self.norm = LayerNorm(config.layer_norm_eps, runtime.compute_dtype)

    def __call__(
        self, cls: Array, rest: Array, lengths: Array | None = None, keys: Array | None = None
    ) -> Array:
        """cls [B, D], rest [B, L, D], lengths of the rest -> hidden [B, L, D]."""
        x = layers.dropout(with_cls(cls, rest), keys, INPUT_SITE, self.config.hidden_dropout)
        visible = causal_window(x.shape[1], self.window)
        return self.norm(self.layers(x, lengths, keys, visible)[0])


class CausalLayer(nn.Module):
    """GPT-2's block: normalise first, add after; the MLP is 4 × hidden (QAC's released code).

    The two projections that are added to the stream start at N(0, 0.02 / sqrt(2 n)), n layers.
    """

    config: Any
    runtime: Runtime
    layers: int

    packs: ClassVar = (0, 1)

    @nn.compact
    def __call__(
        self, x: Array, index: int | Array, lengths: Lengths, keys: Keys, visible: Array
    ) -> Array:
        config, runtime = self.config, self.runtime
        dtype = runtime.compute_dtype
        residual = nn.initializers.normal(config.initializer_range / (2 * self.layers) ** 0.5)
        h = LayerNorm(config.layer_norm_eps, dtype, name="attention_norm")(x)
        attention = Attention(config, runtime, residual, name="attention")
        x = x + attention(h, lengths, keys, index, visible=visible)
        h = LayerNorm(config.layer_norm_eps, dtype, name="mlp_norm")(x)
        x = x + Mlp(config, runtime, 4 * config.hidden_size, residual, name="mlp")(h, keys, index)
        return shard(x, "batch", "length", None)
