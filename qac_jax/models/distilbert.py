"""DistilBERT: a BERT without token types and pooler (Sanh et al., 2019).

Parameters are a BERT's (bert.py) without embeddings/type. A sequence classifier's `pre_classifier`
with relu is the pooler here. Nothing is dropped between the attention's output projection and the
sum with the layer's input, other than in a BERT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax

from qac_jax.errors import UserError
from qac_jax.models import packing
from qac_jax.models.architecture import register
from qac_jax.models.backbone import Backbone, BackboneConfig
from qac_jax.models.layers import Array, Embedding, LayerNorm, Runtime, dropout, shard
from qac_jax.models.tensor_names import Slot, Table, dense, norm
from qac_jax.models.transformer import INPUT_SITE, Attention, Layers, Mlp


_EPSILON = 1e-12  # transformers has no key for it


@register
@dataclasses.dataclass(frozen=True)
class DistilBertConfig(BackboneConfig):
    """A DistilBERT's architecture."""

    num_layers: int = 6

    display_name: ClassVar = "DistilBERT"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)
    hf_class: ClassVar = "DistilBert"
    hf_fields: ClassVar = {
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
        "pad_id": "pad_token_id",
    }
    hf_bases: ClassVar[tuple[str, ...]] = ("distilbert.",)
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{model}pre_classifier.",),
        "mlm_head": ("{model}vocab_",),
    }
    hf_classifier_dropout: ClassVar[str] = "seq_classif_dropout"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_norm_eps != _EPSILON:
            raise UserError(
                f"layer_norm_eps={self.layer_norm_eps} is not supported by DistilBERT, whose files "
                f"cannot say it; leave it at {_EPSILON}"
            )

    def build(self, runtime: Runtime) -> DistilBert:
        return DistilBert(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return Layers(partial(DistilBertLayer, self, runtime), count, runtime)

    @property
    def classifier_dropout(self) -> float:
        return 0.2  # transformers' default, whatever that of the layers is

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        raw = super().to_hf(labels)
        return (
            raw if labels is None else raw | {self.hf_classifier_dropout: self.classifier_dropout}
        )

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {f"{model}vocab_projector.weight": f"{encoder}{cls.hf_words}"}

    def table(self, encoder: str = "", model: str = "") -> Table:
        embeddings = f"{encoder}embeddings."
        found: Table = {
            f"embeddings/{name}/embedding": Slot(f"{embeddings}{name}_embeddings.weight")
            for name in ("word", "position")
        }
        found |= norm("embeddings/norm", f"{embeddings}LayerNorm")
        layers = self.stack_table(self.num_layers, f"{encoder}transformer.layer.")
        found |= {f"layers/{path}": slot for path, slot in layers.items()}
        if self.pooler:
            found |= dense("pooler", f"{model}pre_classifier")
        if self.mlm_head:
            found |= dense("mlm_head/dense", f"{model}vocab_transform")
            found |= norm("mlm_head/norm", f"{model}vocab_layer_norm")
            found["mlm_head/bias"] = Slot(f"{model}vocab_projector.bias")
        return found

    def stack_table(self, count: int, prefix: str) -> Table:
        found: Table = {}
        for i in range(count):
            theirs = f"{prefix}{i}"
            for ours, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                found |= dense(f"{i}/attention/{ours}", f"{theirs}.attention.{name}_lin")
            found |= norm(f"{i}/attention_norm", f"{theirs}.sa_layer_norm")
            found |= dense(f"{i}/mlp/up", f"{theirs}.ffn.lin1")
            found |= dense(f"{i}/mlp/down", f"{theirs}.ffn.lin2")
            found |= norm(f"{i}/mlp_norm", f"{theirs}.output_layer_norm")
        return found


class DistilBertLayer(nn.Module):
    """Attention and MLP, each added to its input and then normalised."""

    config: DistilBertConfig
    runtime: Runtime

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
        dtype = runtime.compute_dtype
        undropped = dataclasses.replace(config, hidden_dropout=0.0)
        attention = Attention(undropped, runtime, name="attention")
        mixed = attention(x, lengths, keys, index, rows=rows)
        x = packing.first(x, lengths, rows)
        keys = keys if rows is None else packing.text_keys(keys)
        x = LayerNorm(config.layer_norm_eps, dtype, name="attention_norm")(x + mixed)
        mlp = Mlp(config, runtime, config.intermediate_size, name="mlp")(x, keys, index)
        x = LayerNorm(config.layer_norm_eps, dtype, name="mlp_norm")(x + mlp)
        return shard(x, "batch", "length", None)


class DistilBertEmbeddings(nn.Module):
    """Word + position, normalised."""

    config: DistilBertConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.initializer_range)
        width = config.hidden_size
        self.word = Embedding(config.vocab_size, width, "vocab", init)
        self.position = Embedding(config.max_positions, width, "positions", init)
        self.norm = LayerNorm(config.layer_norm_eps, self.runtime.compute_dtype)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = self.norm(self.word(ids) + self.position.table[: ids.shape[1]])
        x = shard(x, "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.hidden_dropout, self.runtime.dropout)


class DistilBert(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: DistilBertConfig
    runtime: Runtime = Runtime()

    embedding_class: ClassVar = DistilBertEmbeddings

    def pool(self, x: Array, lengths: Array | None, keys: Array | None) -> Array:
        """The pooled vectors [B, hidden]: what a sequence classifier reads."""
        return jax.nn.relu(self.pooler(x[:, 0]))
