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
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import flax.linen as nn

from qac_jax.errors import UserError
from qac_jax.models.architecture import register
from qac_jax.models.backbone import Backbone, BackboneConfig
from qac_jax.models.layers import Array, Embedding, LayerNorm, Runtime, dropout, shard
from qac_jax.models.tensor_names import Slot, Table, dense, norm
from qac_jax.models.transformer import INPUT_SITE, EncoderLayer, Layers


@register
@dataclasses.dataclass(frozen=True)
class BertConfig(BackboneConfig):
    """A BERT's architecture: what its parameters are and what they compute.

    ERNIE 2.0 is a BERT with four token types (type_vocab_size=4).
    """

    type_vocab_size: int = 2

    display_name: ClassVar = "BERT"
    model_types: ClassVar[tuple[str, ...]] = (
        "bert",
        "ernie",
        "dpr",
    )  # a DPR is a pair of BERTs (hub/dpr.py)
    hf_class: ClassVar = "Bert"
    hf_fields: ClassVar = BackboneConfig.hf_fields | {"type_vocab_size": "type_vocab_size"}
    hf_bases: ClassVar[tuple[str, ...]] = ("bert.", "ernie.")
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{encoder}pooler.",),
        "mlm_head": ("{model}cls.",),
    }
    hf_ignored: ClassVar[tuple[str, ...]] = ("*cls.seq_relationship.*",)

    def build(self, runtime: Runtime) -> Bert:
        return Bert(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return Layers(partial(EncoderLayer, self, runtime), count, runtime)

    @property
    def token_types(self) -> int:
        return self.type_vocab_size

    @property
    def first_position(self) -> int:
        """The row of the position embeddings that a text's first token has."""
        return 0

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        position = raw.get("position_embedding_type", "absolute")
        if position != "absolute":
            raise UserError(
                f"position_embedding_type={position!r} is not supported; expected absolute"
            )
        if raw.get("use_task_id"):
            raise UserError(
                "this ERNIE has task embeddings (use_task_id, ERNIE 3.0), which are not supported; "
                "ERNIE 2.0 is"
            )
        return super().from_hf(raw, **parts)

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        return super().to_hf(labels) | {"position_embedding_type": "absolute"}

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {
            f"{model}cls.predictions.decoder.weight": f"{encoder}{cls.hf_words}",
            f"{model}cls.predictions.decoder.bias": f"{model}cls.predictions.bias",
        }

    def table(self, encoder: str = "", model: str = "") -> Table:
        embeddings = f"{encoder}embeddings."
        table: Table = {
            f"embeddings/{ours}/embedding": Slot(f"{embeddings}{theirs}_embeddings.weight")
            for ours, theirs in (("word", "word"), ("position", "position"), ("type", "token_type"))
        }
        table |= norm("embeddings/norm", f"{embeddings}LayerNorm")
        layers = self.stack_table(self.num_layers, f"{encoder}encoder.layer.")
        table |= {f"layers/{path}": slot for path, slot in layers.items()}
        if self.pooler:
            table |= dense("pooler", f"{encoder}pooler.dense")
        if self.mlm_head:
            table |= dense("mlm_head/dense", f"{model}cls.predictions.transform.dense")
            table |= norm("mlm_head/norm", f"{model}cls.predictions.transform.LayerNorm")
            table["mlm_head/bias"] = Slot(f"{model}cls.predictions.bias")
        return table

    def stack_table(self, count: int, prefix: str) -> Table:
        table: Table = {}
        for i in range(count):
            theirs = f"{prefix}{i}"
            for name in ("query", "key", "value"):
                table |= dense(f"{i}/attention/{name}", f"{theirs}.attention.self.{name}")
            table |= dense(f"{i}/attention/output", f"{theirs}.attention.output.dense")
            table |= norm(f"{i}/attention_norm", f"{theirs}.attention.output.LayerNorm")
            table |= dense(f"{i}/mlp/up", f"{theirs}.intermediate.dense")
            table |= dense(f"{i}/mlp/down", f"{theirs}.output.dense")
            table |= norm(f"{i}/mlp_norm", f"{theirs}.output.LayerNorm")
        return table


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
        start = self.config.first_position
        x = self.word(ids) + self.position.table[start : start + ids.shape[1]]
        x = x + (self.type.table[0] if token_types is None else self.type(token_types))
        x = shard(self.norm(x), "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.hidden_dropout, self.runtime.dropout)


class Bert(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: BertConfig
    runtime: Runtime = Runtime()

    embedding_class: ClassVar = BertEmbeddings
