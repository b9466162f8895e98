"""A pointer-generator (See et al., 2017): a BERT reads, a few of T5's layers write, and may copy.

The next token is drawn from a mixture of two distributions: over the vocabulary, and over the
tokens of the text that was read, by attention. What a short decoder cannot know, names and terms of
a text, it points to, so that little data teaches it to ask about texts of any kind. It has a T5's
methods (encode, decode, init_cache, step). The encoder is a trained one (MiniLM, say), which the
optimiser may leave as it is (`frozen`). Its word embeddings, centred and of unit length, are what
the decoder reads and what its output is compared with.

    {"encoder": a BERT's, "memory": {"hidden", "word", "before", "norm"}, "input", "decoder": T5's,
     "output", "copy": {"query", "key"}, "gate"}
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models import layers
from qac_jax.models.backbone import Architecture, Slot, Table, dense, register, under
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.heads import log_likelihood
from qac_jax.models.layers import Array, Dense, Runtime, dense_of, shard, statistics_dtype
from qac_jax.models.t5 import T5, T5Config
from qac_jax.models.t5_layers import Cache, RMSNorm, Stack


# The least probability of a token: its logarithm must be finite.
_LEAST = 1e-12
_CLOSED = 50.0  # a gate that lets nothing be copied
# Word vectors have this length where they are read: with 1 the layers behind learn half as fast.
_LENGTH = 4.0
_STD = 0.03  # of new weights
_OF_ENCODER = (
    "vocab_size hidden_size num_layers num_heads intermediate_size max_positions type_vocab_size "
    "layer_norm_eps pad_id"
).split()

_OF_DECODER = "d_ff feed_forward dropout start_id eos_id".split()


@register
@dataclasses.dataclass(frozen=True)
class PointerConfig(Architecture):
    """The encoder's shape (a BERT's), and the decoder's (T5's layers of the same width)."""

    vocab_size: int = 30522
    hidden_size: int = 384
    num_layers: int = 6
    num_heads: int = 12
    intermediate_size: int = 1536
    max_positions: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    num_decoder_layers: int = 2
    d_ff: int = 1536
    feed_forward: str = "relu"
    dropout: float = 0.1
    encoder_dropout: float = 0.0  # where the encoder is trained too
    pad_id: int = 0
    start_id: int = 101
    eos_id: int = 102

    display_name: ClassVar = "pointer-generator"
    model_types: ClassVar[tuple[str, ...]] = ("pointer-generator",)
    hf_fields: ClassVar = {
        **{name: BertConfig.hf_keys()[name] for name in _OF_ENCODER},
        **{name: T5Config.hf_keys()[name] for name in _OF_DECODER},
    }
    hf_words: ClassVar = "encoder.embeddings.word_embeddings.weight"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.encoder, self.decoder  # which check it

    def build(self, runtime: Runtime) -> PointerGenerator:
        return PointerGenerator(self, runtime)

    def reads_with(self, encoder: object) -> bool:
        mine = {name: getattr(self, name) for name in _OF_ENCODER}
        return type(encoder) is BertConfig and mine == {n: getattr(encoder, n) for n in _OF_ENCODER}

    @property
    def encoder(self) -> BertConfig:
        """Without the optional parts of a BERT."""
        rate = self.encoder_dropout
        fields: Any = {name: getattr(self, name) for name in _OF_ENCODER}
        return BertConfig(**fields, hidden_dropout=rate, attention_dropout=rate)

    @property
    def decoder(self) -> T5Config:
        """Its embeddings and its encoder are not used."""
        return T5Config(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            d_kv=self.hidden_size // self.num_heads,
            d_ff=self.d_ff,
            num_decoder_layers=self.num_decoder_layers,
            num_heads=self.num_heads,
            feed_forward=self.feed_forward,
            dropout=self.dropout,
        )

    def to_hf(self) -> dict[str, Any]:
        return super().to_hf() | {"architectures": ["PointerGenerator"], "is_encoder_decoder": True}

    def table(self, encoder: str = "", model: str = "") -> Table:
        del encoder, model  # names have no prefix
        table = under("encoder", self.encoder.table("encoder."))
        decoder = self.decoder.table()
        table |= {path: slot for path, slot in decoder.items() if path.startswith("decoder/")}
        for name in ("hidden", "word", "before"):
            table |= dense(f"memory/{name}", f"memory.{name}", bias=name == "hidden")
        table["memory/norm/scale"] = Slot("memory.norm.weight")
        for name in ("input", "gate"):
            table |= dense(name, name)
        table |= dense("output/dense", "output.dense")
        table["output/bias"] = Slot("output.bias")
        for name in ("query", "key"):
            table |= dense(f"copy/{name}", f"copy.{name}")
        return table


class Memory(NamedTuple):
    """Inputs of the decoder: states [B, S, D] and ids [B, S] of the text, and the word vectors."""

    states: Array
    ids: Array
    words: Any  # [V, D], rows of unit length; None in a cache that is kept without them


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointerCache:
    """T5's cache, and the memory with the keys of copying, which are the same at every step."""

    inner: Cache
    memory: Memory
    keys: Array

    @property
    def position(self) -> Array:
        return self.inner.position

    def take(self, rows: Array) -> PointerCache:
        """The cache of rows[0], rows[1] … (beam search); rows must stay with their text."""
        return dataclasses.replace(self, inner=self.inner.take(rows))

    def at(self, position: Array) -> PointerCache:
        """The same at another position, or at one of each row."""
        return dataclasses.replace(self, inner=self.inner.at(position))

    def cut(self, length: int) -> PointerCache:
        """The cache of texts that are padded to this length."""
        states, ids, words = self.memory
        memory = Memory(states[:, :length], ids[:, :length], words)
        return PointerCache(self.inner.cut(length), memory, self.keys[:, :length])

    def sharing(self, words: Array | None) -> PointerCache:
        """The cache with the word vectors, which all texts share, or (None) without them."""
        return dataclasses.replace(self, memory=self.memory._replace(words=words))

    def axes(self) -> PointerCache:
        """The axis of every array that counts rows or texts; without word vectors."""
        memory = Memory(0, 0, None)  # type: ignore[arg-type]
        return PointerCache(self.inner.axes(), memory, 0)  # type: ignore[arg-type]


def _dense(module: Any, init: Any = None, use_bias: bool = True) -> Dense:
    """A layer of the encoder's width."""
    init, width = init or nn.initializers.normal(_STD), module.config.hidden_size
    return dense_of(module.runtime, width, (None, "embed"), init, use_bias)


class _Reading(nn.Module):
    """The states that are attended to: the encoder's, beside a token's own vector and the last one.

    Which token stands where is what copying looks for, and an encoder of meanings says it badly.
    """

    config: PointerConfig
    runtime: Runtime

    def setup(self) -> None:
        self.hidden, self.word = _dense(self), _dense(self, use_bias=False)
        self.before = _dense(self, nn.initializers.zeros_init(), use_bias=False)
        self.norm = RMSNorm(self.config.decoder, self.runtime.compute_dtype)

    def __call__(self, hidden: Array, vectors: Array) -> Array:
        before = jnp.pad(vectors[:, :-1], ((0, 0), (1, 0), (0, 0)))
        x = self.hidden(hidden) + self.word(_LENGTH * vectors) + self.before(_LENGTH * before)
        return shard(self.norm(x), "batch", "length", None)


class _Copy(nn.Module):
    """Which token of the text the next one is: one head of attention."""

    config: PointerConfig
    runtime: Runtime

    def setup(self) -> None:
        self.query, self.key = _dense(self), _dense(self)

    def __call__(self, hidden: Array, keys: Array, visible: Array) -> Array:
        """Weights [B, T, S] of hidden [B, T, D]; visible [B, S]."""
        width = hidden.shape[-1]
        dtype = statistics_dtype(hidden.dtype)
        scores = jnp.einsum("btd,bsd->bts", self.query(hidden), keys, preferred_element_type=dtype)
        scores = jnp.where(visible[:, None], scores * width**-0.5, jnp.finfo(dtype).min)
        return jax.nn.softmax(scores, axis=-1)


class _Output(nn.Module):
    """Scores of every word: a dense layer, and a product with the word vectors."""

    config: PointerConfig
    runtime: Runtime

    def setup(self) -> None:
        self.dense = _dense(self)
        zeros, shape = nn.initializers.zeros_init(), (self.config.vocab_size,)
        self.bias = layers.parameter(self, "bias", zeros, shape, ("vocab",))

    def __call__(self, hidden: Array, words: Array) -> Array:
        flat = self.dense(hidden).reshape(-1, words.shape[1])
        dtype, contract = statistics_dtype(flat.dtype), (((1,), (1,)), ((), ()))
        flat = flat.astype(words.dtype)
        scores = lax.dot_general(flat, words, contract, preferred_element_type=dtype)
        return scores.reshape(*hidden.shape[:-1], -1) + self.bias


class PointerGenerator(nn.Module):
    """Called with all inputs, it gives the teacher-forced logits."""

    config: PointerConfig
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.encoder = Bert(config.encoder, runtime)
        self.memory = _Reading(config, runtime)
        self.input = _dense(self)
        self.decoder = Stack(config.decoder, dataclasses.replace(runtime, packed=()), decoder=True)
        self.output = _Output(config, runtime)
        self.copy = _Copy(config, runtime)
        self.gate = Dense(1, ("embed", None), runtime.compute_dtype)

    def __call__(
        self, ids: Array, lengths: Array, targets_in: Array, keys: Array | None = None
    ) -> Array:
        """Logits [B, T, vocabulary] of the token after each of targets_in."""
        return self.decode(targets_in, self.encode(ids, lengths, keys), lengths, keys)

    example_inputs = staticmethod(T5.example_inputs)

    def in_common(self) -> Array:
        """The word vectors, which `encode` makes if it is not given them; they are only multiplied
        with others, so in `mixed` precision they are bfloat16."""
        dtype = jnp.bfloat16 if self.runtime.mixed else self.runtime.compute_dtype
        return _unit(self.encoder.word_table()).astype(dtype)

    def encode(
        self, ids: Array, lengths: Array, keys: Array | None = None, shared: Array | None = None
    ) -> Memory:
        hidden = self.encoder(ids, lengths, keys=keys).last
        words = self.in_common() if shared is None else shared
        return Memory(self.memory(hidden, self._vectors(ids, words)), ids, words)

    def decode(
        self,
        targets_in: Array,
        memory: Memory,
        lengths: Array,
        keys: Array | None = None,
        beside: int = 1,
    ) -> Array:
        """Logits [B, T, vocabulary]; beside: see `Stack.forced`."""
        x = self._input(targets_in, memory)
        hidden = self.decoder.forced(x, memory.states, lengths, keys, beside)
        return self._logits(hidden, memory, self.copy.key(memory.states), lengths)

    def init_cache(
        self, memory: Memory, lengths: Array, max_length: int, copies: int = 1
    ) -> PointerCache:
        inner = self.decoder.init_cache(memory.states, lengths, max_length, copies)
        return PointerCache(inner, memory, self.copy.key(memory.states))

    def step(self, ids: Array, cache: PointerCache) -> tuple[Array, PointerCache]:
        """Logits [R, vocabulary] of the token after ids [R], and the cache with ids written in."""
        memory = cache.memory
        x = self._input(ids[:, None], memory)
        hidden, inner = self.decoder.step(x, cache.inner)
        # Rows that continue one text read its memory together.
        together = hidden.reshape(memory.ids.shape[0], -1, hidden.shape[-1])
        logits = self._logits(together, memory, cache.keys, inner.memory_lengths)
        return logits.reshape(ids.shape[0], -1), dataclasses.replace(cache, inner=inner)

    def likelihood(
        self,
        targets_in: Array,
        targets: Array,
        memory: Memory,
        lengths: Array,
        keys: Array | None = None,
    ) -> Array:
        """log p [B, T] of every target: as the logits say, without those of all other tokens."""
        x = self._input(targets_in, memory)
        hidden = self.decoder.forced(x, memory.states, lengths, keys)
        scores = self.output(hidden, memory.words)
        # As in `token_loss`: a gather's gradient would be a scatter into an array of all words.
        is_target = jnp.arange(scores.shape[-1]) == targets[..., None]
        picked = jnp.where(is_target, scores, 0.0).sum(-1)
        said = picked - jax.nn.logsumexp(scores, axis=-1)
        return self._mixture(said, hidden, targets, memory, lengths)

    def counted_likelihood(
        self,
        targets_in: Array,
        targets: Array,
        counted: Array,
        memory: Memory,
        lengths: Array,
        beside: int = 1,
    ) -> Array:
        """The same where counted [B, T], without gradients; beside: see `Stack.forced`."""
        x = self._input(targets_in, memory)
        hidden = self.decoder.forced(x, memory.states, lengths, beside=beside)
        said = log_likelihood(lambda h: self.output(h, memory.words), hidden, targets, counted)
        return jnp.where(counted, self._mixture(said, hidden, targets, memory, lengths), 0.0)

    def _mixture(
        self, said: Array, hidden: Array, targets: Array, memory: Memory, lengths: Array
    ) -> Array:
        """log p of targets [B, T] whose logarithm among the words is `said`."""
        copied, gate = self._pointing(hidden, memory, self.copy.key(memory.states), lengths)
        share = jax.nn.sigmoid(gate)
        same = memory.ids[:, None] == targets[..., None]
        pointed = jnp.where(same, copied, 0.0).sum(-1) * (1.0 - share)
        return jnp.log(jnp.exp(said) * share + pointed + _LEAST)

    def _input(self, ids: Array, memory: Memory) -> Array:
        return self.input(_LENGTH * self._vectors(ids, memory.words))

    def _vectors(self, ids: Array, words: Array) -> Array:
        return words[ids].astype(self.runtime.compute_dtype)

    def _logits(self, hidden: Array, memory: Memory, keys: Array, lengths: Array) -> Array:
        """Logits of the mixture, in at least fp32: the words' scores, greater where the text has
        the word. Divided by the words' share, probabilities are exp(score) / sum of exp(scores)
        + exp(-gate) x those of copying, so that no other word's score needs a change."""
        scores = self.output(hidden, memory.words)
        copied, gate = self._pointing(hidden, memory, keys, lengths)
        ids = memory.ids
        equal = (ids[:, :, None] == ids[:, None]).astype(copied.dtype)
        total = jnp.einsum("bts,bsr->btr", copied, equal)  # a word may stand in several places
        pointed = jax.nn.logsumexp(scores, axis=-1) - gate
        pointed = pointed[..., None] + jnp.log(total + _LEAST)

        def changed(row: Array, tokens: Array, pointed: Array) -> Array:
            return row.at[:, tokens].set(jnp.logaddexp(row[:, tokens], pointed))

        return shard(jax.vmap(changed)(scores, ids, pointed), "batch", "length", "vocab")

    def _pointing(
        self, hidden: Array, memory: Memory, keys: Array, lengths: Array
    ) -> tuple[Array, Array]:
        """Weights of the text's tokens [B, T, S], and the gate between words and them: the words'
        share is its sigmoid."""
        config, ids = self.config, memory.ids
        special = (ids == config.pad_id) | (ids == config.start_id) | (ids == config.eos_id)
        visible = (jnp.arange(ids.shape[1]) < lengths[:, None]) & ~special
        # A text of nothing but special tokens has nothing to copy.
        any_visible = visible.any(1)[:, None, None]
        copied = jnp.where(any_visible, self.copy(hidden, keys, visible), 0.0)
        context = jnp.einsum("bts,bsd->btd", copied.astype(hidden.dtype), memory.states)
        gate = self.gate(jnp.concatenate([hidden, context], axis=-1)).astype(copied.dtype)
        gate = jnp.where(any_visible, gate, _CLOSED)[..., 0]
        return copied, gate


def _unit(words: Array) -> Array:
    """Rows without their mean, of length 1."""
    wide = words.astype(statistics_dtype(words.dtype))
    wide = wide - wide.mean(0)
    return wide * lax.rsqrt(jnp.square(wide).sum(1, keepdims=True) + 1e-6)


# Models that read a text and write another: each has `encode`, `decode`, `init_cache` and `step`.
Writer = T5 | PointerGenerator
