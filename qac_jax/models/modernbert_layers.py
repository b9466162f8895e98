"""ModernBERT's parts: a layer with rotary positions and a window, and its prediction head."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from qac_jax.models import packing
from qac_jax.models.attention import attend, merge_heads, split_heads
from qac_jax.models.layers import (
    Array,
    Dense,
    LayerNorm,
    Runtime,
    activation,
    dense_of,
    dropout,
    parameter,
    shard,
    statistics_dtype,
)
from qac_jax.models.mlm_head import tied_logits
from qac_jax.models.transformer import site


# Dropout places of a layer.
_PROBABILITIES, _ATTENTION, _MLP = range(3)


def layer_norm(config: Any, runtime: Runtime, name: str | None = None) -> LayerNorm:
    """A norm as the configuration says, with or without bias."""
    dtype = runtime.compute_dtype
    return LayerNorm(config.layer_norm_eps, dtype, config.norm_bias, name=name)


def angles(length: int, width: int, theta: float) -> np.ndarray:
    """[length, width / 2]: how far each pair of dimensions is turned at each position."""
    pairs = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = 1.0 / np.float32(theta) ** pairs
    return np.arange(length, dtype=np.float32)[:, None] * frequencies


def rotate(x: Array, turn: Array, scale: float = 1.0) -> Array:
    """Rotary positions (Su et al., 2021): dimension i and i + width / 2 of x [B, H, L, width]
    are a pair, which is turned by turn[l, i]; scale multiplies the result."""
    wide = x.astype(statistics_dtype(x.dtype))
    left, right = jnp.split(wide, 2, axis=-1)
    turn = turn.astype(wide.dtype)
    cos, sin = jnp.cos(turn) * scale, jnp.sin(turn) * scale
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


class ModernLayer(nn.Module):
    """Norm, attention, sum; norm, gated MLP, sum. `first` is the number of a stack's layer 0.

    Every global_every-th layer sees the whole text, the others a window on both sides of a token.
    """

    config: Any
    runtime: Runtime
    normalise: bool = True
    first: int = 0

    packs: ClassVar = (0, 1)

    @nn.compact
    def __call__(
        self,
        x: Array,
        index: int | Array,
        lengths: Array | None,
        keys: Array | None,
        rows: int | None = None,
    ) -> Array:
        config, runtime = self.config, self.runtime
        number = index + self.first
        h = layer_norm(config, runtime, "attention_norm")(x) if self.normalise else x
        mixed = ModernAttention(config, runtime, name="attention")(h, number, lengths, keys, rows)
        x = packing.first(x, lengths, rows) + mixed
        keys = keys if rows is None else packing.text_keys(keys)
        h = layer_norm(config, runtime, "mlp_norm")(x)
        x = x + GatedMlp(config, runtime, name="mlp")(h, number, keys)
        return shard(x, "batch", "length", None)


class ModernAttention(nn.Module):
    """Attention with rotary positions, over the whole text or a window."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(
        self,
        x: Array,
        number: int | Array,
        lengths: Array | None,
        keys: Array | None,
        rows: int | None,
    ) -> Array:
        config, runtime = self.config, self.runtime
        width, heads = config.hidden_size, config.num_heads
        std, bias, rate = config.initializer_range, config.attention_bias, config.attention_dropout
        into = nn.initializers.truncated_normal(std)
        fused = dense_of(runtime, 3 * width, ("embed", "heads"), into, bias, name="qkv")(x)
        fused = packing.unpack(shard(fused, "batch", "length", "heads"), lengths, "heads")
        query, key, value = (split_heads(part, heads) for part in jnp.split(fused, 3, axis=-1))
        turn, visible = self._positions(fused.shape[1], number)
        query = rotate(query, turn, (width // heads) ** -0.5)
        mixed = attend(
            query[:, :, :rows],
            rotate(key, turn),
            value,
            lengths,
            runtime,
            visible=visible if visible is None else visible[:rows],
            keys=keys,
            site=site(number, _PROBABILITIES),
            rate=rate,
        )
        merged = merge_heads(mixed)
        if rows is None:
            merged = packing.pack(merged, lengths, "heads")
        else:
            keys = packing.text_keys(keys)
        out = nn.initializers.truncated_normal(std / (2 * config.num_layers) ** 0.5)
        output = dense_of(runtime, width, ("heads", "embed"), out, bias, name="output")
        return dropout(output(merged), keys, site(number, _ATTENTION), rate, runtime.dropout)

    def _positions(self, length: int, number: int | Array) -> tuple[Array, Array | None]:
        """Angles, and the visible pairs (None: all) of layer `number`, which a scan only knows
        at run time."""
        config = self.config
        width = config.hidden_size // config.num_heads
        everywhere = angles(length, width, config.global_theta)
        nearby = angles(length, width, config.local_theta)
        position = np.arange(length)
        near = np.abs(position[:, None] - position) <= config.window // 2
        whole = number % config.global_every == 0
        if isinstance(whole, bool):
            visible = None if whole or near.all() else jnp.asarray(near)
            return jnp.asarray(everywhere if whole else nearby), visible
        visible = None if near.all() else whole | jnp.asarray(near)
        return jnp.where(whole, everywhere, nearby), visible


class GatedMlp(nn.Module):
    """One product for the gate and what it multiplies; activation, product, down (GeGLU)."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(self, x: Array, number: int | Array, keys: Array | None) -> Array:
        config, runtime = self.config, self.runtime
        inner, bias = config.intermediate_size, config.mlp_bias
        std = config.initializer_range
        into = nn.initializers.truncated_normal(std)
        fused = dense_of(runtime, 2 * inner, ("embed", "mlp"), into, bias, name="up")(x)
        left, right = jnp.split(shard(fused, "batch", "length", "mlp"), 2, axis=-1)
        hidden = activation(config.activation)(left) * right
        hidden = dropout(hidden, keys, site(number, _MLP), config.hidden_dropout, runtime.dropout)
        out = nn.initializers.truncated_normal(std / (2 * config.num_layers) ** 0.5)
        width = config.hidden_size
        return dense_of(runtime, width, ("mlp", "embed"), out, bias, name="down")(hidden)


class PredictionHead(nn.Module):
    """Dense, activation, norm: what a classifier's output reads."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return _predicting(self.config, self.runtime, x)


class WordHead(nn.Module):
    """The same, then the word embedding as output matrix, and mostly a bias a word."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(self, hidden: Array, table: Array, padded: bool = False) -> Array:
        x = _predicting(self.config, self.runtime, hidden)
        bias = None
        if self.config.decoder_bias:
            zeros = nn.initializers.zeros_init()
            bias = parameter(self, "bias", zeros, (self.config.vocab_size,), ("vocab",))
        return tied_logits(x, table, bias, padded, self.runtime.mixed)


def _predicting(config: Any, runtime: Runtime, x: Array) -> Array:
    """`dense`, activation and `norm`, in the module that calls this."""
    std = config.initializer_range / (2 * config.num_layers) ** 0.5
    init, dtype = nn.initializers.truncated_normal(std), runtime.compute_dtype
    width, bias = config.hidden_size, config.head_bias
    x = Dense(width, ("embed", None), dtype, init, bias, name="dense")(x)
    return layer_norm(config, runtime, "norm")(activation(config.head_activation)(x))
