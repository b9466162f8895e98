"""T5's parts: RMS norm, relative positions, attention without scaling, the two blocks, and stacks.

One block's parameters are {"attention": {"query", "key", "value", "output"}, "attention_norm",
"mlp": {"up", "down"} (gated: "gate" too), "mlp_norm"}; the decoder's also have
"cross_attention" and "cross_attention_norm". Norms come first, sums after (pre-LN). The cache of
decoding is an ordinary value, so that it can be carried by a loop inside a compiled program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qac_jax.models import layers, packing
from qac_jax.models.attention import attend, causal_window, merge_heads, split_heads
from qac_jax.models.layers import Array, Dense, Runtime, dense_of, dropout, parameter, shard
from qac_jax.models.packing import Keys, Lengths
from qac_jax.models.transformer import Layers


# What `feed_forward_proj` may say: (activation, whether a second projection is multiplied in).
# Hugging Face reads "gated-gelu" as the tanh approximation.
FEED_FORWARD: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "relu": (jax.nn.relu, False),
    "gated-gelu": (layers.gelu_tanh, True),
}

# Dropout places of a block; site 0 is the embeddings.
_SITES_A_LAYER = 6
_WEIGHTS, _ATTENTION, _CROSS_WEIGHTS, _CROSS, _INNER, _MLP = range(_SITES_A_LAYER)

KeysValues = tuple[Array, Array]


def site(index: int | Array, place: int = 0) -> int | Array:
    """The number of a dropout place of layer `index`."""
    return 1 + _SITES_A_LAYER * index + place


def bucket_table(buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of each distance 0…max_distance on one side: exact at first, then logarithmic.

    Hugging Face computes in float32 and truncates, so this does too: the last bit decides where
    the logarithm meets a whole number.
    """
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    far = np.log(np.maximum(distance, exact).astype(np.float32) / np.float32(exact))
    scaled = far / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    coarse = np.minimum(exact + scaled.astype(np.int64), buckets - 1)
    return np.where(distance < exact, distance, coarse).astype(np.int32)


def relative_buckets(
    relative: Array | np.ndarray, *, bidirectional: bool, buckets: int, max_distance: int
) -> Array:
    """T5's bucket of `key position - query position`; a decoder has none for what comes later."""
    side = buckets // 2 if bidirectional else buckets
    table = jnp.asarray(bucket_table(side, max_distance))
    relative = jnp.asarray(relative)
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    bucket = table[jnp.minimum(distance, max_distance)]
    return bucket + side * (relative > 0) if bidirectional else bucket


class RelativeBias(nn.Module):
    """One learned score a bucket and head, added to the scores of all layers of a stack.

    std is that of new scores.
    """

    config: Any
    std: float
    bidirectional: bool

    @nn.compact
    def __call__(self, query_positions: Array, key_positions: Array) -> Array:
        """(1, heads, queries, keys)."""
        config = self.config
        init = nn.initializers.normal(self.std)
        shape = (config.num_buckets, config.num_heads)
        table = parameter(self, "embedding", init, shape, (None, "heads"))
        bucket = relative_buckets(
            key_positions[None, :] - query_positions[:, None],
            bidirectional=self.bidirectional,
            buckets=config.num_buckets,
            max_distance=config.max_distance,
        )
        # A product with one-hot rows, because a gather's gradient would scatter every pair of
        # positions into a few dozen rows.
        chosen = jax.nn.one_hot(bucket, config.num_buckets, dtype=table.dtype)
        return jnp.einsum("qkb,bh->hqk", chosen, table, precision="highest")[None]


class RMSNorm(nn.Module):
    """T5's layer norm: a scale, no mean, no bias."""

    config: Any
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.constant(self.config.initializer_factor)
        scale = parameter(self, "scale", init, x.shape[-1:], ("embed",))
        wide = x.astype(layers.statistics_dtype(x.dtype))
        mean_square = jnp.square(wide).mean(-1, keepdims=True)
        inverse = lax.rsqrt(mean_square + self.config.layer_norm_eps)
        return (wide * inverse * layers.spread(scale, wide)).astype(self.dtype)


class T5Attention(nn.Module):
    """Attention whose scores are not scaled: the initial queries are small instead."""

    config: Any
    runtime: Runtime

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        inner, factor = config.num_heads * config.d_kv, config.initializer_factor

        def dense(width: int, axes: tuple[str, str], std: float) -> Dense:
            init = nn.initializers.normal(factor * std)
            return dense_of(runtime, width, axes, init, use_bias=False)

        into = ("embed", "heads")
        self.query = dense(inner, into, (config.d_model * config.d_kv) ** -0.5)
        self.key = dense(inner, into, config.d_model**-0.5)
        self.value = dense(inner, into, config.d_model**-0.5)
        self.output = dense(config.d_model, ("heads", "embed"), inner**-0.5)

    def queries(self, x: Array, lengths: Any = None) -> Array:
        """[B, heads, L, d_kv]; x is packed where lengths are."""
        return self._split(self.query(x), lengths)

    def keys_values(self, x: Array, lengths: Any = None) -> KeysValues:
        """Each [B, heads, L, d_kv]; x is packed where lengths are."""
        return self._split(self.key(x), lengths), self._split(self.value(x), lengths)

    def _split(self, x: Array, lengths: Any) -> Array:
        x = packing.unpack(shard(x, "batch", "length", "heads"), lengths, "heads")
        return split_heads(x, self.config.num_heads)

    def merge(self, mixed: Array, lengths: Any = None) -> Array:
        """Heads back to hidden states, packed where lengths are."""
        return self.output(packing.pack(merge_heads(mixed), lengths, "heads"))


class FeedForward(nn.Module):
    """Up, activation (times a second projection in v1.1), down; no biases."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(self, x: Array, keys: Array | None, index: int | Array) -> Array:
        config, runtime = self.config, self.runtime
        factor = config.initializer_factor
        function, gated = FEED_FORWARD[config.feed_forward]

        def up(name: str) -> Array:
            init = nn.initializers.normal(factor * config.d_model**-0.5)
            dense = dense_of(runtime, config.d_ff, ("embed", "mlp"), init, False, name=name)
            return shard(dense(x), "batch", "length", "mlp")

        hidden = function(up("gate")) * up("up") if gated else function(up("up"))
        hidden = dropout(hidden, keys, site(index, _INNER), config.dropout)
        init = nn.initializers.normal(factor * config.d_ff**-0.5)
        down = dense_of(runtime, config.d_model, ("mlp", "embed"), init, False, name="down")
        return down(hidden)


class EncoderBlock(nn.Module):
    """Self-attention over the text, then the feed-forward network."""

    config: Any
    runtime: Runtime

    packs: ClassVar = (0, 2)

    @nn.compact
    def __call__(
        self,
        x: Array,
        index: int | Array,
        lengths: Lengths,
        bias: Array,
        keys: Keys,
        rows: int | None = None,
    ) -> Array:
        """rows: only the first `rows` positions are computed (None: all)."""
        config, runtime = self.config, self.runtime
        dtype, rate = runtime.compute_dtype, config.dropout
        attention = T5Attention(config, runtime, name="attention")
        h = RMSNorm(config, dtype, name="attention_norm")(x)
        of_queries = lengths if rows is None else None
        queries = attention.queries(packing.first(h, lengths, rows), of_queries)
        drops: Any = {"keys": keys, "site": site(index, _WEIGHTS), "rate": rate}
        pairs = attention.keys_values(h, lengths)
        mixed = attend(queries, *pairs, lengths, runtime, bias=bias[:, :, :rows], **drops)
        keys = keys if rows is None else packing.text_keys(keys)
        h = attention.merge(mixed, of_queries)
        h = dropout(h, keys, site(index, _ATTENTION), rate)
        x = packing.first(x, lengths, rows) + h
        h = RMSNorm(config, dtype, name="mlp_norm")(x)
        h = FeedForward(config, runtime, name="mlp")(h, keys, index)
        x = x + dropout(h, keys, site(index, _MLP), rate)
        return shard(x, "batch", "length", None)


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward network."""

    config: Any
    runtime: Runtime

    def setup(self) -> None:
        config, dtype = self.config, self.runtime.compute_dtype
        self.attention_norm = RMSNorm(config, dtype)
        self.attention = T5Attention(config, self.runtime)
        self.cross_attention_norm = RMSNorm(config, dtype)
        self.cross_attention = T5Attention(config, self.runtime)
        self.mlp_norm = RMSNorm(config, dtype)
        self.mlp = FeedForward(config, self.runtime)

    def __call__(
        self,
        x: Array,
        index: int | Array,
        bias: Array,
        visible: Array,
        memory: Array,
        memory_lengths: Array,
        keys: Array | None,
    ) -> Array:
        """All positions at once (teacher forcing).

        x holds one or more continuations of a text side by side, of visible's length each.
        """
        runtime, rate = self.runtime, self.config.dropout
        # Each by itself here; together where they read the memory.
        h = self.attention_norm(x).reshape(-1, visible.shape[-1], x.shape[-1])
        queries, pairs = self.attention.queries(h), self.attention.keys_values(h)
        drops: Any = {"keys": keys, "site": site(index, _WEIGHTS), "rate": rate}
        mixed = attend(queries, *pairs, None, runtime, visible=visible, bias=bias, **drops)
        h = self.attention.merge(mixed).reshape(x.shape)
        x = x + dropout(h, keys, site(index, _ATTENTION), rate)
        h = self.cross_attention_norm(x)
        queries = self.cross_attention.queries(h)
        pairs = self.cross_attention.keys_values(memory)
        drops |= {"site": site(index, _CROSS_WEIGHTS)}
        mixed = attend(queries, *pairs, memory_lengths, runtime, **drops)
        h = self.cross_attention.merge(mixed)
        x = x + dropout(h, keys, site(index, _CROSS), rate)
        h = self.mlp(self.mlp_norm(x), keys, index)
        x = x + dropout(h, keys, site(index, _MLP), rate)
        return shard(x, "batch", "length", None)

    def memory(self, memory: Array) -> KeysValues:
        """Keys and values of the cross-attention: they are the same at every step.

        Keys are [B, heads, d_kv, S]: a few queries are multiplied with them four times as fast on
        CPUs as with the usual order.
        """
        keys, values = self.cross_attention.keys_values(memory)
        return keys.swapaxes(2, 3), values

    def step(
        self,
        x: Array,
        past: KeysValues,
        cross: KeysValues,
        bias: Array,
        visible: Array,
        memory_lengths: Array,
        position: Array,
    ) -> tuple[Array, KeysValues]:
        """One position [R, 1, embed], and the cache with it written in.

        R may be C times the rows of `cross`: then rows r·C … r·C+C-1 continue the same text, and
        attend to its memory as C queries, so that memory is neither copied nor read C times.
        """
        h = self.attention_norm(x)
        new = self.attention.keys_values(h)
        past = (_written(past[0], new[0], position), _written(past[1], new[1], position))
        queries = self.attention.queries(h)
        mixed = attend(queries, *past, None, self.runtime, visible=visible, bias=bias)
        x = x + self.attention.merge(mixed)
        rows, texts = x.shape[0], cross[0].shape[0]
        h = self.cross_attention_norm(x).reshape(texts, rows // texts, -1)
        queries = self.cross_attention.queries(h)
        keys, values = cross
        mixed = attend(queries, keys.swapaxes(2, 3), values, memory_lengths, self.runtime)
        x = x + self.cross_attention.merge(mixed).reshape(x.shape)
        return x + self.mlp(self.mlp_norm(x), None, 0), past


def _written(past: Array, new: Array, position: Array) -> Array:
    """past [R, heads, M, d_kv] with the new [R, heads, 1, d_kv] at a position, or one a row."""
    new = new.astype(past.dtype)
    if not position.ndim:
        return lax.dynamic_update_slice_in_dim(past, new, position, 2)
    return past.at[jnp.arange(past.shape[0]), :, position].set(new[:, :, 0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The memory of decoding: R rows of at most M positions, for B texts (R = B · copies).

    past and cross hold (keys, values) of every layer. past is [R, heads, M, d_kv]; cross' keys are
    [B, heads, d_kv, S], its values [B, heads, S, d_kv].
    """

    past: tuple[KeysValues, ...]
    cross: tuple[KeysValues, ...]
    memory_lengths: Array
    position: Array  # how many positions are written: of all rows, or of each [R]

    @property
    def max_length(self) -> int:
        """M, which `position` must not exceed."""
        return jax.tree.leaves(self.past)[0].shape[-2]

    def take(self, rows: Array) -> Cache:
        """The cache of rows[0], rows[1] … (beam search); rows must stay with their text."""
        return dataclasses.replace(self, past=jax.tree.map(lambda x: x[rows], self.past))

    def at(self, position: Array) -> Cache:
        """The same at another position, or at one of each row."""
        return dataclasses.replace(self, position=position)

    def cut(self, length: int) -> Cache:
        """The cache of texts that are padded to this length."""
        cross = tuple((keys[..., :length], values[:, :, :length]) for keys, values in self.cross)
        return dataclasses.replace(self, cross=cross)

    def sharing(self, shared: None) -> Cache:
        """The cache itself: a T5's texts share nothing (see `PointerCache`)."""
        return self

    def axes(self) -> Cache:
        """The axis of every array that counts rows or texts."""
        return jax.tree.map(lambda _: 0, self)


class Stack(nn.Module):
    """The common part of encoder and decoder: layers between dropout and a norm."""

    config: Any  # T5Config, or what has its fields
    runtime: Runtime
    decoder: bool

    def setup(self) -> None:
        config = self.config
        self.relative_bias = RelativeBias(config, config.bias_std, bidirectional=not self.decoder)
        self.norm = RMSNorm(config, self.runtime.compute_dtype)
        make = partial(DecoderBlock if self.decoder else EncoderBlock, config, self.runtime)
        self.count = config.num_decoder_layers if self.decoder else config.num_layers
        self.layers = Layers(make, self.count, self.runtime)

    def __call__(
        self, x: Array, keys: Array | None, wanted: Sequence[int], *arguments: Any
    ) -> tuple[Array, dict[int, Array]]:
        """The normalised output, and the wanted layers' outputs before that."""
        rate = self.config.dropout
        x = dropout(x, keys, 0, rate)
        x, states = self.layers(x, *arguments, keys, wanted=wanted)
        return dropout(self.norm(x), keys, site(self.count), rate), states

    def layer_parameters(self) -> list[Any]:
        layers = nn.meta.unbox(self.layers.variables["params"])
        numbers = range(self.count)
        if self.runtime.scan:
            return [jax.tree.map(itemgetter(i), layers) for i in numbers]
        return [layers[str(i)] for i in numbers]

    def forced(
        self, x: Array, memory: Array, lengths: Array, keys: Array | None = None, beside: int = 1
    ) -> Array:
        """The decoder's output at all positions of embedded targets x [B, T, d_model].

        beside: how many continuations of one text stand in a row, of T / beside positions each.
        None sees another, and the memory's keys and values are made once for all of them.
        """
        keys = layers.fold(keys, 1)  # other bits than the encoder's
        length = x.shape[1] // beside
        positions = jnp.arange(length)
        bias = self.relative_bias(positions, positions)
        return self(x, keys, (), bias, causal_window(length), memory, lengths)[0]

    def init_cache(self, memory: Array, lengths: Array, max_length: int, copies: int = 1) -> Cache:
        """An empty cache of `copies` rows a text; the memory's keys and values are made here."""
        config = self.config
        block = DecoderBlock(config, self.runtime, parent=None)
        layers = self.layer_parameters()
        crosses = (block.apply({"params": layer}, memory, method="memory") for layer in layers)
        shape = (memory.shape[0] * copies, config.num_heads, max_length, config.d_kv)
        empty = jnp.zeros(shape, self.runtime.compute_dtype)
        past = tuple((empty, empty) for _ in layers)
        return Cache(past, tuple(crosses), lengths, jnp.zeros((), jnp.int32))

    def step(self, x: Array, cache: Cache) -> tuple[Array, Cache]:
        """The decoder's output of one position x [R, 1, d_model], and the cache with it."""
        position = cache.position
        slots = jnp.arange(cache.max_length)
        bias = self.relative_bias(jnp.atleast_1d(position), slots)
        visible = (slots <= position[..., None])[..., None, :]
        if position.ndim:  # each row has its own
            bias, visible = bias[0].swapaxes(0, 1)[:, :, None], visible[:, None]
        block = DecoderBlock(self.config, self.runtime, parent=None)
        past = []
        for layer, *both in zip(self.layer_parameters(), cache.past, cache.cross, strict=True):
            arguments = (*both, bias, visible, cache.memory_lengths, position)
            x, written = block.apply({"params": layer}, x, *arguments, method="step")
            past.append(written)
        return self.norm(x), dataclasses.replace(cache, past=tuple(past), position=position + 1)
