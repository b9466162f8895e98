"""Heads that pre-training puts on an encoder's [CLS] vector, so that it must hold the text.

All read a sequence whose first position is that vector and whose other positions are something
weaker: early hidden states (Condenser) or the embeddings of another text (CoT-MAE). All give
hidden states for the encoder's own MLM head.

Parameters: {"layers": as in transformer.py} and, for the causal decoder, {"norm"}.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.models.attention import causal_window
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.layers import Array, LayerNorm, Runtime, dropout, shard
from qac_jax.models.transformer import INPUT_SITE, CausalLayer, Layers


def with_cls(cls: Array, rest: Array) -> Array:
    """rest [B, L, D] with cls [B, D] in the place of its first position."""
    joined = jnp.concatenate([cls[:, None].astype(rest.dtype), rest[:, 1:]], axis=1)
    return shard(joined, "batch", "length", None)


class BidirectionalHead(nn.Module):
    """The encoder's layers over [CLS] and the rest: Condenser's head and CoT-MAE's MLM decoder.

    In Condenser `rest` is hidden state number skip_from of the same text (0: embeddings); in
    CoT-MAE it is `Backbone.embed` of the other text, masked on its own.
    """

    config: BackboneConfig
    runtime: Runtime = Runtime()
    num_layers: int = 2

    def setup(self) -> None:
        self.layers = self.config.stack(self.runtime, self.num_layers)

    def __call__(
        self, cls: Array, rest: Array, lengths: Array | None = None, keys: Array | None = None
    ) -> Array:
        """cls [B, D], rest [B, L, D], lengths of the rest -> hidden [B, L, D]."""
        return self.layers(with_cls(cls, rest), lengths, keys)[0]

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, ...]:
        """Arguments that initialise it."""
        return _example_inputs(self.config)


class CausalDecoder(nn.Module):
    """GPT-2 blocks over [CLS] and a text's embeddings: CoT-MAE's released query decoder.

    Position t predicts token t + 1. With a window W it sees itself, the W - 1 positions before
    it and column 0, the passage; -1 is the plain causal decoder.
    """

    config: BackboneConfig
    runtime: Runtime = Runtime()
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
        x = with_cls(cls, rest)
        x = dropout(x, keys, INPUT_SITE, self.config.hidden_dropout, self.runtime.dropout)
        visible = causal_window(x.shape[1], self.window)
        return self.norm(self.layers(x, lengths, keys, visible)[0])

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, ...]:
        """Arguments that initialise it."""
        return _example_inputs(self.config)


def _example_inputs(config: BackboneConfig) -> tuple[Array, ...]:
    return jnp.zeros((1, config.hidden_size)), jnp.zeros((1, 2, config.hidden_size))
