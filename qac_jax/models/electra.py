"""ELECTRA: a BERT whose embeddings may be narrower than its layers (Clark et al., 2020).

Parameters are a BERT's (bert.py), with embeddings/project {"kernel", "bias"} where embedding_size
is not hidden_size. The generator's word predictions are the MLM head, a sequence classifier's
dense layer with gelu is the pooler; the discriminator's head is not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import flax.linen as nn

from qac_jax.errors import UserError
from qac_jax.models.architecture import register
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.layers import (
    Array,
    Dense,
    Embedding,
    LayerNorm,
    Runtime,
    dropout,
    gelu,
    shard,
)
from qac_jax.models.tensor_names import Slot, Table, dense, norm, under
from qac_jax.models.transformer import INPUT_SITE


@register
@dataclasses.dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """An ELECTRA's architecture, the generator's or the discriminator's."""

    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    embedding_size: int = 128

    display_name: ClassVar = "ELECTRA"
    model_types: ClassVar[tuple[str, ...]] = ("electra",)
    hf_class: ClassVar = "Electra"
    hf_fields: ClassVar = BertConfig.hf_fields | {"embedding_size": "embedding_size"}
    hf_bases: ClassVar[tuple[str, ...]] = ("electra.",)
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{model}classifier.dense.",),
        "mlm_head": ("{model}generator_",),
    }
    hf_ignored: ClassVar[tuple[str, ...]] = ("*discriminator_predictions.*",)

    def build(self, runtime: Runtime) -> Electra:
        return Electra(self, runtime)

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {f"{model}generator_lm_head.weight": f"{encoder}{cls.hf_words}"}

    def table(self, encoder: str = "", model: str = "") -> Table:
        found = super().table(encoder, model)
        if self.embedding_size != self.hidden_size:
            found |= dense("embeddings/project", f"{encoder}embeddings_project")
        if self.pooler:
            found |= dense("pooler", f"{model}classifier.dense")
        if self.mlm_head:
            found |= dense("mlm_head/dense", f"{model}generator_predictions.dense")
            found |= norm("mlm_head/norm", f"{model}generator_predictions.LayerNorm")
            found["mlm_head/bias"] = Slot(f"{model}generator_lm_head.bias")
        return found

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        found = self.with_parts("pooler").table(encoder, model)
        return under("backbone", found) | dense("classifier", f"{model}classifier.out_proj")


class ElectraEmbeddings(nn.Module):
    """Word + position + token type, normalised, at the width of the layers."""

    config: ElectraConfig
    runtime: Runtime

    def setup(self) -> None:
        config, dtype = self.config, self.runtime.compute_dtype
        init = nn.initializers.normal(config.initializer_range)
        width = config.embedding_size
        self.word = Embedding(config.vocab_size, width, "vocab", init)
        self.position = Embedding(config.max_positions, width, "positions", init)
        self.type = Embedding(config.type_vocab_size, width, "types", init)
        self.norm = LayerNorm(config.layer_norm_eps, dtype)
        if width != config.hidden_size:
            self.project = Dense(config.hidden_size, (None, "embed"), dtype, init)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        config = self.config
        x = self.word(ids) + self.position.table[: ids.shape[1]]
        x = x + (self.type.table[0] if token_types is None else self.type(token_types))
        x = dropout(self.norm(x), keys, INPUT_SITE, config.hidden_dropout, self.runtime.dropout)
        if config.embedding_size != config.hidden_size:
            x = self.project(x)
        return shard(x, "batch", "length", None)


class Electra(Bert):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: ElectraConfig
    runtime: Runtime = Runtime()

    embedding_class: ClassVar = ElectraEmbeddings
    mlm_activation: ClassVar = "gelu"

    def pool(self, x: Array, lengths: Array | None, keys: Array | None) -> Array:
        """The pooled vectors [B, hidden]: what a sequence classifier reads."""
        return gelu(self.pooler(x[:, 0]))

    def position_vectors(self, length: int) -> Array:
        """What the embeddings add for the first `length` positions: [length, D]."""
        config = self.config
        if config.embedding_size != config.hidden_size:
            raise UserError(
                f"this ELECTRA's position embeddings have {config.embedding_size} dimensions and "
                f"its layers {config.hidden_size}, so this objective cannot add them; use one that "
                "reads no position embeddings, such as cotmae.CotMae"
            )
        return super().position_vectors(length)
