"""BERT: token ids -> hidden states, pooled vector, masked-language-model logits.

Parameters (the contract for stored checkpoints and for the Hugging Face bridge):

    {"embeddings": {"word": {"embedding"}, "position": {"embedding"}, "type": {"embedding"},
                    "norm": {"scale", "bias"}},
     "layers": {"0": {"attention": {"query", "key", "value", "output"}, "attention_norm",
                      "mlp": {"up", "down"}, "mlp_norm"}, "1": …},
     "pooler": {"kernel", "bias"},                                  where config.pooler
     "mlm_head": {"dense", "norm", "bias"}}                         where config.mlm_head

Every projection is {"kernel" [in, out], "bias"}, every norm {"scale", "bias"}. The MLM head's
output matrix is the word embedding. With Runtime.scan "layers" is one layer whose leaves have
a leading axis (see transformer.py). Post-LN, exact gelu, learned positions, token types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.layers import (
    Array,
    Dense,
    Embedding,
    LayerNorm,
    Runtime,
    activation,
    dropout,
    parameter,
    shard,
    statistics_dtype,
)
from qac_jax.models.transformer import INPUT_SITE, EncoderLayer, Layers


_LANES = 128


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """A BERT's architecture: what its parameters are and what they compute.

    ERNIE 2.0 is a BERT with four token types (type_vocab_size=4).
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    type_vocab_size: int = 2
    activation: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int = 0
    pooler: bool = False
    mlm_head: bool = False

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} cannot be cut into num_heads={self.num_heads} "
                "equal heads; expected a multiple"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name}={getattr(self, name)} is not in [0, 1)")
        activation(self.activation)


class BertOutput(NamedTuple):
    """What a BERT says about a batch."""

    last: Array  # [B, L, hidden]; [B, rows, hidden] where only the first rows were asked for
    hidden_states: dict[int, Array]  # those asked for, under the numbers asked with
    pooled: Array | None  # [B, hidden], where the config has a pooler

    @property
    def cls(self) -> Array:
        """The last layer's vector of the first token, un-pooled: [B, hidden]."""
        return self.last[:, 0]


class BertEmbeddings(nn.Module):
    """Word + position + token type, normalised."""

    config: BertConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        width = config.hidden_size
        self.word = Embedding(config.vocab_size, width, "vocab", init)
        self.position = Embedding(config.max_positions, width, "positions", init)
        self.type = Embedding(config.type_vocab_size, width, "types", init)
        self.norm = LayerNorm(config.layer_norm_eps, self.runtime.compute_dtype)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        length, limit = ids.shape[1], self.config.max_positions
        if length > limit:
            raise UserError(
                f"texts of {length} tokens do not fit this model, which has {limit} positions; "
                "truncate them"
            )
        x = self.word(ids) + self.position.table[:length]
        x = x + (self.type.table[0] if token_types is None else self.type(token_types))
        x = shard(self.norm(x), "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.hidden_dropout, self.runtime.dropout)


class MlmHead(nn.Module):
    """Dense, activation, norm, then the word embedding as output matrix, plus a bias a word."""

    config: BertConfig
    runtime: Runtime

    @nn.compact
    def __call__(self, hidden: Array, table: Array, padded: bool = False) -> Array:
        config, dtype = self.config, self.runtime.compute_dtype
        init = nn.initializers.normal(config.initializer_range)
        x = Dense(config.hidden_size, ("embed", None), dtype, init, name="dense")(hidden)
        x = activation(config.activation)(x)
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


def take_positions(hidden: Array, positions: Array) -> Array:
    """hidden [B, L, D] at positions [B, M] -> [B, M, D]."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1, mode="clip")


class Bert(nn.Module):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BertOutput."""

    config: BertConfig
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.embeddings = BertEmbeddings(config, runtime)
        self.layers = Layers(partial(EncoderLayer, config, runtime), config.num_layers, runtime)
        if config.pooler:
            init = nn.initializers.normal(config.initializer_range)
            width = config.hidden_size
            self.pooler = Dense(width, ("embed", None), runtime.compute_dtype, init)
        if config.mlm_head:
            self.mlm_head = MlmHead(config, runtime)

    def __call__(
        self,
        ids: Array,
        lengths: Array | None = None,
        token_types: Array | None = None,
        keys: Array | None = None,
        hidden_states: Sequence[int] = (),
        rows: int | None = None,
    ) -> BertOutput:
        """Encodes a batch.

        hidden_states: the numbers of the hidden states to return; 0 is the embeddings' output,
        k that of layer k, negative numbers count from the last. rows: the last layer computes
        only the first so many positions (1 where only the CLS vector is used).
        """
        count = self.config.num_layers
        wanted = {number: self._resolve(number) for number in hidden_states}
        if rows is not None and count in wanted.values():
            raise UserError("rows= cuts the last hidden state, which hidden_states asks for whole")
        x = self.embed(ids, token_types, keys)
        x, states = self.layers(x, lengths, keys, wanted=tuple(wanted.values()), rows=rows)
        if self.is_initializing() and self.config.mlm_head:
            self.mlm_logits(x[:, :1])
        pooled = jnp.tanh(self.pooler(x[:, 0])) if self.config.pooler else None
        return BertOutput(x, {n: states[k] for n, k in wanted.items()}, pooled)

    def embed(
        self, ids: Array, token_types: Array | None = None, keys: Array | None = None
    ) -> Array:
        """The embeddings' output, hidden state 0: what decoders that share them read."""
        return self.embeddings(ids, token_types, keys)

    def mlm_logits(
        self, hidden: Array, positions: Array | None = None, padded: bool = False
    ) -> Array:
        """Word logits of hidden [B, L, D], or only at positions [B, M] (the masked ones).

        padded=True leaves the vocabulary padded to a multiple of 128 (see `tied_logits`).
        """
        if not self.config.mlm_head:
            raise UserError("this BERT has no MLM head; make it with mlm_head=True")
        if positions is not None:
            hidden = take_positions(hidden, positions)
        return self.mlm_head(hidden, self.embeddings.word.table, padded)

    def _resolve(self, number: int) -> int:
        count = self.config.num_layers
        state = number + count + 1 if number < 0 else number
        if not 0 <= state <= count:
            raise UserError(
                f"hidden state {number} does not exist; a BERT of {count} layers has 0 to {count}"
            )
        return state
