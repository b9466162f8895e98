"""BERT and its relatives: RoBERTa, XLM-R, DistilBERT, ELECTRA, MPNet, each a declared difference.

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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models import packing
from qac_jax.models.backbone import Backbone, BackboneConfig, Slot, Table, register
from qac_jax.models.layers import Array, Dense, Embedding, LayerNorm, Runtime, dropout, shard
from qac_jax.models.packing import Keys, Lengths, Rows
from qac_jax.models.t5_layers import RelativeBias
from qac_jax.models.transformer import INPUT_SITE, Attention, Layers, Mlp


_WORDS = "{encoder}embeddings.word_embeddings.weight"


class BertEmbeddings(nn.Module):
    """Word + position (+ token type), normalised; projected where layers are wider."""

    config: FamilyConfig
    runtime: Runtime

    def setup(self) -> None:
        config, dtype = self.config, self.runtime.compute_dtype
        init = nn.initializers.normal(config.initializer_range)
        width = config.embedding_size
        self.word = Embedding(config.vocab_size, width, "vocab", init)
        self.position = Embedding(config.max_positions, width, "positions", init)
        if config.type_vocab_size:
            self.type = Embedding(config.type_vocab_size, width, "types", init)
        self.norm = LayerNorm(config.layer_norm_eps, dtype)
        if width != config.hidden_size:
            self.project = Dense(config.hidden_size, (None, "embed"), dtype, init)

    def __call__(self, ids: Array, token_types: Array | None, keys: Keys) -> Array:
        config = self.config
        start = config.first_position
        x = self.word(ids) + self.position.table[start : start + ids.shape[1]]
        if config.type_vocab_size:
            x = x + (self.type.table[0] if token_types is None else self.type(token_types))
        x = shard(self.norm(x), "batch", "length", None)
        x = dropout(x, keys, INPUT_SITE, config.hidden_dropout)
        if config.embedding_size == config.hidden_size:
            return x
        return shard(self.project(x), "batch", "length", None)


class EncoderLayer(nn.Module):
    """Attention and MLP, each added to its input and then normalised."""

    config: Any
    runtime: Runtime

    packs: ClassVar = (0, 1)

    @nn.compact
    def __call__(
        self,
        x: Array,
        index: int | Array,
        lengths: Lengths,
        keys: Keys,
        bias: Array | None = None,
        rows: Rows = None,
    ) -> Array:
        config, runtime = self.config, self.runtime
        of_attention = config
        if not config.drops_attention_output:
            of_attention = dataclasses.replace(config, hidden_dropout=0.0)
        attention = Attention(of_attention, runtime, name="attention")
        mixed = attention(x, lengths, keys, index, rows=rows, bias=bias)
        x = packing.first(x, lengths, rows)
        keys = keys if rows is None else packing.text_keys(keys)
        norm = partial(LayerNorm, config.layer_norm_eps, runtime.compute_dtype)
        x = norm(name="attention_norm")(x + mixed)
        mlp = Mlp(config, runtime, config.intermediate_size, name="mlp")(x, keys, index)
        return shard(norm(name="mlp_norm")(x + mlp), "batch", "length", None)


class Bert(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: FamilyConfig
    runtime: Runtime = Runtime()


@dataclasses.dataclass(frozen=True)
class FamilyConfig(BackboneConfig):
    """The common part of the family; the class variables are BERT's."""

    embedding_class: ClassVar = BertEmbeddings
    # Whether the attention's output is dropped before it is added.
    drops_attention_output: ClassVar[bool] = True
    # Rows of the token types' table; 0: there is none.
    type_vocab_size: ClassVar[int] = 0

    hf_names: ClassVar = {
        "embeddings/word/embedding": _WORDS,
        "embeddings/position/embedding": "{encoder}embeddings.position_embeddings.weight",
        "embeddings/norm": "{encoder}embeddings.LayerNorm",
        "pooler": "{encoder}pooler.dense",
        "mlm_head/dense": "{model}lm_head.dense",
        "mlm_head/norm": "{model}lm_head.layer_norm",
        "mlm_head/bias": "{model}lm_head.bias",
    }
    hf_layer: ClassVar = {
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "mlp/up": "intermediate.dense",
        "mlp/down": "output.dense",
        "mlp_norm": "output.LayerNorm",
    }
    hf_tied: ClassVar[dict[str, str]] = {
        "{model}lm_head.decoder.weight": _WORDS,
        "{model}lm_head.decoder.bias": "{model}lm_head.bias",
    }

    def build(self, runtime: Runtime) -> Backbone:
        return Bert(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return Layers(partial(EncoderLayer, self, runtime), count, runtime)


@register
@dataclasses.dataclass(frozen=True)
class BertConfig(FamilyConfig):
    """BERT (Devlin et al., 2019). ERNIE 2.0 is one with four token types (type_vocab_size=4)."""

    type_vocab_size: int = 2  # type: ignore[misc]

    display_name: ClassVar = "BERT"
    # A DPR is a pair of BERTs (hub/dpr.py).
    model_types: ClassVar[tuple[str, ...]] = ("bert", "ernie", "dpr")
    hf_bases: ClassVar[tuple[str, ...]] = ("bert.", "ernie.")
    hf_names: ClassVar = FamilyConfig.hf_names | {
        "embeddings/type/embedding": "{encoder}embeddings.token_type_embeddings.weight",
        "mlm_head/dense": "{model}cls.predictions.transform.dense",
        "mlm_head/norm": "{model}cls.predictions.transform.LayerNorm",
        "mlm_head/bias": "{model}cls.predictions.bias",
    }
    hf_tied: ClassVar = {
        "{model}cls.predictions.decoder.weight": _WORDS,
        "{model}cls.predictions.decoder.bias": "{model}cls.predictions.bias",
    }
    hf_ignored: ClassVar[tuple[str, ...]] = ("*cls.seq_relationship.*",)

    @property
    def token_types(self) -> int:
        return self.type_vocab_size

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        for name, usual in (("position_embedding_type", "absolute"), ("use_task_id", False)):
            if raw.get(name, usual) != usual:
                raise UserError(f"{name}={raw[name]!r} is not supported; expected {usual}")
        return super().from_hf(raw, **parts)

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        return super().to_hf(labels) | {"position_embedding_type": "absolute"}


@register
@dataclasses.dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """RoBERTa (Liu et al., 2019): positions begin after the padding's, and no token types.

    The first token of a text has the row pad_id + 1 of the position embeddings, so that 514 rows
    (max_positions) are 512 positions. Token types have a row (or more) that is added to every
    token; no tokenizer of the family gives another one.
    """

    vocab_size: int = 50265
    pad_id: int = 1

    mlm_activation: ClassVar = "gelu"  # whatever that of the layers is
    display_name: ClassVar = "RoBERTa"
    model_types: ClassVar[tuple[str, ...]] = ("roberta",)
    hf_bases: ClassVar = ("roberta.",)
    hf_names: ClassVar = BertConfig.hf_names | {
        name: FamilyConfig.hf_names[name]
        for name in ("mlm_head/dense", "mlm_head/norm", "mlm_head/bias")
    }
    hf_tied: ClassVar = FamilyConfig.hf_tied
    hf_classifier: ClassVar = {
        "backbone/pooler": "{model}classifier.dense",
        "classifier": "{model}classifier.out_proj",
    }
    # A sequence classifier has a dense layer of its own instead.
    hf_ignored: ClassVar[tuple[str, ...]] = ("roberta.pooler.*",)

    @property
    def token_types(self) -> int:
        return 0

    @property
    def first_position(self) -> int:  # type: ignore[override]
        return self.pad_id + 1

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        return super().to_hf(labels) | {"bos_token_id": 0, "eos_token_id": 2}


@register
@dataclasses.dataclass(frozen=True)
class XlmRobertaConfig(RobertaConfig):
    """XLM-R (Conneau et al., 2020): a RoBERTa with another vocabulary."""

    vocab_size: int = 30522

    display_name: ClassVar = "XLM-R"
    model_types: ClassVar[tuple[str, ...]] = ("xlm-roberta",)
    hf_class: ClassVar = "XLMRoberta"


@register
@dataclasses.dataclass(frozen=True)
class DistilBertConfig(FamilyConfig):
    """DistilBERT (Sanh et al., 2019): no token types; the pooler is a sequence classifier's."""

    num_layers: int = 6

    pooler_activation: ClassVar = "relu"
    drops_attention_output: ClassVar = False
    display_name: ClassVar = "DistilBERT"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)
    hf_fields: ClassVar = BackboneConfig.hf_fields | {
        "layer_norm_eps": "",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "activation": "activation",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
    }
    hf_bases: ClassVar = ("distilbert.",)
    hf_names: ClassVar = FamilyConfig.hf_names | {
        "pooler": "{model}pre_classifier",
        "mlm_head/dense": "{model}vocab_transform",
        "mlm_head/norm": "{model}vocab_layer_norm",
        "mlm_head/bias": "{model}vocab_projector.bias",
    }
    hf_layers: ClassVar = "{encoder}transformer.layer."
    hf_layer: ClassVar = {
        "attention/query": "attention.q_lin",
        "attention/key": "attention.k_lin",
        "attention/value": "attention.v_lin",
        "attention/output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "mlp/up": "ffn.lin1",
        "mlp/down": "ffn.lin2",
        "mlp_norm": "output_layer_norm",
    }
    hf_tied: ClassVar = {"{model}vocab_projector.weight": _WORDS}
    hf_classifier_dropout: ClassVar[str] = "seq_classif_dropout"
    classifier_rate: ClassVar = 0.2  # transformers' default, whatever that of the layers is

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_norm_eps != BackboneConfig.layer_norm_eps:
            raise UserError(
                f"layer_norm_eps={self.layer_norm_eps} is not supported by DistilBERT, whose files "
                "cannot say it"
            )


@register
@dataclasses.dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """ELECTRA (Clark et al., 2020): embeddings may be narrower than layers ("embeddings/project").

    The generator's word predictions are the MLM head, a sequence classifier's dense layer with gelu
    is the pooler; the discriminator's head is not read.
    """

    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    embedding_size: int = 128

    pooler_activation: ClassVar = "gelu"
    mlm_activation: ClassVar = "gelu"
    display_name: ClassVar = "ELECTRA"
    model_types: ClassVar[tuple[str, ...]] = ("electra",)
    hf_bases: ClassVar = ("electra.",)
    hf_names: ClassVar = BertConfig.hf_names | {
        "embeddings/project": "{encoder}embeddings_project",
        "pooler": "{model}classifier.dense",
        "mlm_head/dense": "{model}generator_predictions.dense",
        "mlm_head/norm": "{model}generator_predictions.LayerNorm",
        "mlm_head/bias": "{model}generator_lm_head.bias",
    }
    hf_tied: ClassVar = {"{model}generator_lm_head.weight": _WORDS}
    hf_classifier: ClassVar = {"classifier": "{model}classifier.out_proj"}
    hf_ignored: ClassVar[tuple[str, ...]] = ("*discriminator_predictions.*",)

    def table(self, encoder: str = "", model: str = "") -> Table:
        found = super().table(encoder, model)
        if self.embedding_size == self.hidden_size:
            return {path: slot for path, slot in found.items() if "/project/" not in path}
        return found


@register
@dataclasses.dataclass(frozen=True)
class MpnetConfig(FamilyConfig):
    """MPNet (Song et al., 2020): no token types, and relative positions in addition.

    To the attention scores one learned number a distance and head is added, which all layers share:
    {"layers": {"stack_bias": {"embedding": [32, heads]}, "layers": {"0": …, "1": …}}}. Distances
    are those of T5. The position embeddings' first two rows belong to padding, as in RoBERTa.
    """

    vocab_size: int = 30527
    pad_id: int = 1
    num_buckets: int = 32

    mlm_activation: ClassVar = "gelu"
    # transformers' code fixes these, whatever config.json says of padding and of distances.
    first_position: ClassVar = 2
    max_distance: ClassVar = 128
    display_name: ClassVar = "MPNet"
    model_types: ClassVar[tuple[str, ...]] = ("mpnet",)
    hf_class: ClassVar = "MPNet"
    hf_fields: ClassVar = BackboneConfig.hf_fields | {
        "num_buckets": "relative_attention_num_buckets"
    }
    hf_bases: ClassVar = ("mpnet.",)
    hf_layer: ClassVar = FamilyConfig.hf_layer | {
        "attention/query": "attention.attn.q",
        "attention/key": "attention.attn.k",
        "attention/value": "attention.attn.v",
        "attention/output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    }
    hf_classifier: ClassVar = RobertaConfig.hf_classifier

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets != MpnetConfig.num_buckets:
            raise UserError(
                f"num_buckets={self.num_buckets} is not supported; expected "
                f"{MpnetConfig.num_buckets}, which every MPNet has"
            )
        if self.max_length < 1:
            raise UserError(f"max_positions={self.max_positions} leaves no position for a token")

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return MpnetLayers(self, runtime, count)

    def stack_table(self, count: int, prefix: str) -> Table:
        layers = super().stack_table(count, prefix)
        # In the encoder itself it does not stand below "layer.".
        bias = f"{prefix.removesuffix('layer.')}relative_attention_bias.weight"
        return {"stack_bias/embedding": Slot(bias)} | {f"layers/{p}": s for p, s in layers.items()}


class MpnetLayers(nn.Module):
    """BERT's layers, to whose attention scores one learned number a distance and head is added."""

    config: MpnetConfig
    runtime: Runtime
    count: int

    def setup(self) -> None:
        config = self.config
        self.stack_bias = RelativeBias(config, config.initializer_range, bidirectional=True)
        self.layers = Layers(partial(EncoderLayer, config, self.runtime), self.count, self.runtime)

    def __call__(
        self, x: Array, lengths: Lengths, keys: Keys, wanted: Sequence[int] = (), rows: Rows = None
    ) -> tuple[Array, dict[int, Array]]:
        positions = jnp.arange(x.shape[1])
        bias = self.stack_bias(positions, positions)
        return self.layers(x, lengths, keys, bias, wanted=wanted, rows=rows)
