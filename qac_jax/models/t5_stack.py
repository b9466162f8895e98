"""T5's stacks: its layers between dropout and a norm, teacher-forced or one position at a time.

The cache of decoding is an ordinary value, so that it can be carried by a loop inside a compiled
program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.attention import causal_window
from qac_jax.models.layers import Array, Runtime, dropout, fold
from qac_jax.models.t5_layers import (
    DecoderBlock,
    EncoderBlock,
    KeysValues,
    RelativeBias,
    RMSNorm,
    site,
)
from qac_jax.models.transformer import Layers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """What decoding remembers: R rows of at most M positions, for B texts (R = B · copies).

    past and cross hold (keys, values) a layer: a tuple of pairs, or with `Runtime.scan` one pair
    with a leading layer axis. past is [R, heads, M, d_kv]; cross' keys are [B, heads, d_kv, S],
    its values [B, heads, S, d_kv].
    """

    past: Any
    cross: Any
    memory_lengths: Array
    position: Array  # how many positions are written: of all rows, or of each [R]
    stacked: bool = dataclasses.field(metadata={"static": True})

    @property
    def max_length(self) -> int:
        """M, which `position` must not exceed."""
        return jax.tree.leaves(self.past)[0].shape[-2]

    def take(self, rows: Array) -> Cache:
        """The cache of rows[0], rows[1] … (beam search); rows must stay with their text."""
        axis = 1 if self.stacked else 0
        past = jax.tree.map(lambda x: jnp.take(x, rows, axis), self.past)
        return dataclasses.replace(self, past=past)

    def at(self, position: Array) -> Cache:
        """The same at another position, or at one of each row."""
        return dataclasses.replace(self, position=position)

    def cut(self, length: int) -> Cache:
        """The cache of texts that are padded to this length."""
        pairs = [self.cross] if self.stacked else self.cross
        shorter = [(keys[..., :length], values[..., :length, :]) for keys, values in pairs]
        return dataclasses.replace(self, cross=shorter[0] if self.stacked else tuple(shorter))

    def sharing(self, shared: None) -> Cache:
        """The cache itself: a T5's texts share nothing (see `PointerCache`)."""
        return self

    def axes(self) -> Cache:
        """The axis of every array that counts rows or texts."""
        past, cross = jax.tree.map(lambda _: int(self.stacked), (self.past, self.cross))
        axes: Any = {"past": past, "cross": cross, "memory_lengths": 0, "position": 0}
        return dataclasses.replace(self, **axes)


class Stack(nn.Module):
    """What the encoder and the decoder have in common: layers between dropout and a norm."""

    config: Any  # T5Config, or what has its fields
    runtime: Runtime
    decoder: bool

    def setup(self) -> None:
        config = self.config
        self.relative_bias = RelativeBias(config, bidirectional=not self.decoder)
        self.norm = RMSNorm(config, self.runtime.compute_dtype)
        make = partial(DecoderBlock if self.decoder else EncoderBlock, config, self.runtime)
        self.count = config.num_decoder_layers if self.decoder else config.num_layers
        self.layers = Layers(make, self.count, self.runtime)

    def bias(self, query_positions: Array, key_positions: Array) -> Array:
        """(1, heads, queries, keys)."""
        return self.relative_bias(query_positions, key_positions)

    def __call__(
        self, x: Array, keys: Array | None, wanted: Sequence[int], *arguments: Any
    ) -> tuple[Array, dict[int, Array]]:
        """The normalised output, and the wanted layers' outputs before that."""
        rate, generator = self.config.dropout, self.runtime.dropout
        x = dropout(x, keys, 0, rate, generator)
        x, states = self.layers(x, *arguments, keys, wanted=wanted)
        return dropout(self.norm(x), keys, site(self.count), rate, generator), states

    def layer_parameters(self) -> Any:
        """The layers' parameters: {"0": layer, …}, or with `Runtime.scan` stacked."""
        return nn.meta.unbox(self.layers.variables["params"])

    def forced(
        self, x: Array, memory: Array, lengths: Array, keys: Array | None = None, beside: int = 1
    ) -> Array:
        """The decoder's output at all positions of embedded targets x [B, T, d_model].

        beside: how many continuations of one text stand in a row, of T / beside positions each.
        None sees another, and the memory's keys and values are made once for all of them.
        """
        keys = fold(keys, 1)  # other bits than the encoder's
        length = x.shape[1] // beside
        positions = jnp.arange(length)
        bias = self.bias(positions, positions)
        return self(x, keys, (), bias, causal_window(length), memory, lengths)[0]

    def init_cache(self, memory: Array, lengths: Array, max_length: int, copies: int = 1) -> Cache:
        """An empty cache of `copies` rows a text; the memory's keys and values are made here."""
        config = self.config
        block = DecoderBlock(config, self.runtime, parent=None)
        weights = self.layer_parameters()

        def cross(layer: Any) -> KeysValues:
            return block.apply({"params": layer}, memory, method="memory")

        shape = (memory.shape[0] * copies, config.num_heads, max_length, config.d_kv)
        count, dtype = config.num_decoder_layers, self.runtime.compute_dtype
        past: Any
        if self.runtime.scan:
            crosses = lax.map(cross, weights)
            past = (jnp.zeros((count, *shape), dtype), jnp.zeros((count, *shape), dtype))
        else:
            crosses = tuple(cross(weights[str(i)]) for i in range(count))
            past = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(count))
        return Cache(past, crosses, lengths, jnp.zeros((), jnp.int32), self.runtime.scan)

    def step(self, x: Array, cache: Cache) -> tuple[Array, Cache]:
        """The decoder's output of one position x [R, 1, d_model], and the cache with it."""
        position = cache.position
        slots = jnp.arange(cache.max_length)
        bias = self.bias(jnp.atleast_1d(position), slots)
        visible = (slots <= position[..., None])[..., None, :]
        if position.ndim:  # each row has its own
            bias, visible = bias[0].swapaxes(0, 1)[:, :, None], visible[:, None]
        block = DecoderBlock(self.config, self.runtime, parent=None)
        weights = self.layer_parameters()

        def one(x: Array, scanned: Any) -> tuple[Array, KeysValues]:
            layer, past, cross = scanned
            arguments = (past, cross, bias, visible, cache.memory_lengths, position)
            return block.apply({"params": layer}, x, *arguments, method="step")

        past: Any
        if cache.stacked:
            x, past = lax.scan(one, x, (weights, cache.past, cache.cross))
        else:
            pasts = []
            for i, layer in enumerate(zip(cache.past, cache.cross, strict=True)):
                x, written = one(x, (weights[str(i)], *layer))
                pasts.append(written)
            past = tuple(pasts)
        return self.norm(x), dataclasses.replace(cache, past=past, position=position + 1)
