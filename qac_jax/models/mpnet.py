"""MPNet (Song et al., 2020): a BERT without token types, with relative positions in addition.

Parameters: those of a BERT (bert.py) without {"embeddings": {"type"}}, and the layers with the
scores of distances that all of them share:

    {"layers": {"stack_bias": {"embedding": [32, heads]}, "layers": {"0": …, "1": …}}}

The first token has position 2: the table's first two rows belong to padding, as in RoBERTa.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.architecture import register
from qac_jax.models.backbone import Backbone, BackboneConfig
from qac_jax.models.layers import (
    Array,
    Embedding,
    LayerNorm,
    Runtime,
    dropout,
    parameter,
    shard,
)
from qac_jax.models.t5_layers import relative_buckets
from qac_jax.models.tensor_names import Slot, Table, dense, norm, under
from qac_jax.models.transformer import INPUT_SITE, EncoderLayer, Layers


# transformers' code fixes these, whatever config.json says of padding and of buckets.
_FIRST_POSITION = 2
_BUCKETS, _MAX_DISTANCE = 32, 128


@register
@dataclasses.dataclass(frozen=True)
class MpnetConfig(BackboneConfig):
    """An MPNet's architecture."""

    vocab_size: int = 30527
    pad_id: int = 1
    num_buckets: int = _BUCKETS

    display_name: ClassVar = "MPNet"
    model_types: ClassVar[tuple[str, ...]] = ("mpnet",)
    hf_class: ClassVar = "MPNet"
    hf_fields: ClassVar = BackboneConfig.hf_fields | {
        "num_buckets": "relative_attention_num_buckets"
    }
    hf_bases: ClassVar[tuple[str, ...]] = ("mpnet.",)
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{encoder}pooler.",),
        "mlm_head": ("{model}lm_head.",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets != _BUCKETS:
            raise UserError(
                f"num_buckets={self.num_buckets} (relative_attention_num_buckets) is not "
                f"supported; expected {_BUCKETS}, which every MPNet has"
            )
        if self.max_positions <= _FIRST_POSITION:
            raise UserError(
                f"max_positions={self.max_positions} leaves no position for a token; an MPNet's "
                f"first token has position {_FIRST_POSITION}, so expected more"
            )

    def build(self, runtime: Runtime) -> Mpnet:
        return Mpnet(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return MpnetLayers(self, runtime, count)

    @property
    def max_length(self) -> int:
        return self.max_positions - _FIRST_POSITION

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {
            f"{model}lm_head.decoder.weight": f"{encoder}{cls.hf_words}",
            f"{model}lm_head.decoder.bias": f"{model}lm_head.bias",
        }

    def table(self, encoder: str = "", model: str = "") -> Table:
        found: Table = {
            f"embeddings/{name}/embedding": Slot(f"{encoder}embeddings.{name}_embeddings.weight")
            for name in ("word", "position")
        }
        found |= norm("embeddings/norm", f"{encoder}embeddings.LayerNorm")
        layers = self.stack_table(self.num_layers, f"{encoder}encoder.layer.")
        bias = f"{encoder}encoder.relative_attention_bias.weight"
        layers["stack_bias/embedding"] = Slot(bias)  # not below "layer." in the encoder itself
        found |= under("layers", layers)
        if self.pooler:
            found |= dense("pooler", f"{encoder}pooler.dense")
        if self.mlm_head:
            found |= dense("mlm_head/dense", f"{model}lm_head.dense")
            found |= norm("mlm_head/norm", f"{model}lm_head.layer_norm")
            found["mlm_head/bias"] = Slot(f"{model}lm_head.bias")
        return found

    def stack_table(self, count: int, prefix: str) -> Table:
        found: Table = {"stack_bias/embedding": Slot(f"{prefix}relative_attention_bias.weight")}
        for i in range(count):
            ours, theirs = f"layers/{i}", f"{prefix}{i}"
            for name in ("query", "key", "value", "output"):
                found |= dense(f"{ours}/attention/{name}", f"{theirs}.attention.attn.{name[0]}")
            found |= norm(f"{ours}/attention_norm", f"{theirs}.attention.LayerNorm")
            found |= dense(f"{ours}/mlp/up", f"{theirs}.intermediate.dense")
            found |= dense(f"{ours}/mlp/down", f"{theirs}.output.dense")
            found |= norm(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm")
        return found

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        table = self.with_parts("pooler").table(encoder, model)
        table |= dense("pooler", f"{model}classifier.dense")
        return under("backbone", table) | dense("classifier", f"{model}classifier.out_proj")


class MpnetLayers(nn.Module):
    """BERT's layers, to whose attention scores one learned number a distance and head is added.

    Distances are those of T5: 16 buckets on each side, logarithmic from 8 to 128.
    """

    config: MpnetConfig
    runtime: Runtime
    count: int

    def setup(self) -> None:
        config = self.config
        self.stack_bias = DistanceScores(config)
        self.layers = Layers(partial(EncoderLayer, config, self.runtime), self.count, self.runtime)

    def __call__(
        self,
        x: Array,
        lengths: Array | None,
        keys: Array | None,
        wanted: Sequence[int] = (),
        rows: int | None = None,
    ) -> tuple[Array, dict[int, Array]]:
        bias = self.stack_bias(x.shape[1])
        return self.layers(x, lengths, keys, bias, wanted=wanted, rows=rows)


class DistanceScores(nn.Module):
    """One learned score a bucket of distances and head."""

    config: MpnetConfig

    @nn.compact
    def __call__(self, length: int) -> Array:
        """[1, heads, length, length]."""
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        shape = (config.num_buckets, config.num_heads)
        table = parameter(self, "embedding", init, shape, (None, "heads"))
        positions = jnp.arange(length)
        bucket = relative_buckets(
            positions[None] - positions[:, None],
            bidirectional=True,
            buckets=config.num_buckets,
            max_distance=_MAX_DISTANCE,
        )
        # A product with one-hot rows, because a gather's gradient would scatter every pair of
        # positions into a few dozen rows.
        chosen = jax.nn.one_hot(bucket, config.num_buckets, dtype=table.dtype)
        return jnp.einsum("qkb,bh->hqk", chosen, table, precision="highest")[None]


class MpnetEmbeddings(nn.Module):
    """Word + position, normalised."""

    config: MpnetConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        width = config.hidden_size
        self.word = Embedding(config.vocab_size, width, "vocab", init)
        self.position = Embedding(config.max_positions, width, "positions", init)
        self.norm = LayerNorm(config.layer_norm_eps, self.runtime.compute_dtype)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = self.word(ids) + self.positions(ids.shape[1])
        x = shard(self.norm(x), "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.hidden_dropout, self.runtime.dropout)

    def positions(self, length: int) -> Array:
        """The vectors of the first `length` positions."""
        return self.position.table[_FIRST_POSITION : _FIRST_POSITION + length]


class Mpnet(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: MpnetConfig
    runtime: Runtime = Runtime()

    embedding_class: ClassVar = MpnetEmbeddings
    mlm_activation: ClassVar = "gelu"  # whatever that of the layers is

    def position_vectors(self, length: int) -> Array:
        return self.embeddings.positions(length)
