"""ModernBERT (Warner et al., 2024): rotary positions, local and global attention, gated MLPs.

Parameters, where every norm is {"scale"} and every projection {"kernel"}, with {"bias"} besides
where the configuration has it:

    {"embeddings": {"word": {"embedding"}, "norm"},
     "layers": {"stack_first": layer, "layers": {"0": layer, "1": layer, …}, "stack_norm"},
     "pooler": {"dense", "norm"},                                  where config.pooler
     "mlm_head": {"dense", "norm", "bias"}}                        where config.mlm_head

A layer is {"attention_norm", "attention": {"qkv", "output"}, "mlp_norm", "mlp": {"up", "down"}}:
queries, keys and values are one product, and so are the gate and what it multiplies. The first
layer reads normalised embeddings and has no attention_norm, so it stands beside the others. Norms
come first, sums after; the last hidden state is that of the final norm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import flax.linen as nn

from qac_jax.errors import UserError, nearest
from qac_jax.models.architecture import register
from qac_jax.models.backbone import Backbone, BackboneConfig
from qac_jax.models.layers import Array, Embedding, Runtime, activation, dropout, shard
from qac_jax.models.modernbert_layers import ModernLayer, PredictionHead, WordHead, layer_norm
from qac_jax.models.pooling import mean_pool
from qac_jax.models.tensor_names import Slot, Table, dense, norm, under
from qac_jax.models.transformer import INPUT_SITE, Layers, rematerialise


_POOLINGS = ("cls", "mean")
_CLASSIFIER = "ForSequenceClassification"
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


@register
@dataclasses.dataclass(frozen=True)
class ModernBertConfig(BackboneConfig):
    """A ModernBERT's architecture.

    Layers 0, global_every, 2 · global_every … see the whole text, the others `window` // 2 tokens
    on each side. hidden_dropout is that inside of MLPs. pooler is the classifier's head: a dense
    layer, activation and norm over the vector of the first token or over the mean.
    """

    vocab_size: int = 50368
    num_layers: int = 22
    intermediate_size: int = 1152
    max_positions: int = 8192
    layer_norm_eps: float = 1e-5
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    pad_id: int = 50283
    embedding_dropout: float = 0.0
    global_every: int = 3
    window: int = 128
    global_theta: float = 160_000.0
    local_theta: float = 10_000.0
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    decoder_bias: bool = True
    head_bias: bool = False
    head_activation: str = "gelu"
    classifier_pooling: str = "cls"

    display_name: ClassVar = "ModernBERT"
    model_types: ClassVar[tuple[str, ...]] = ("modernbert",)
    hf_class: ClassVar = "ModernBert"
    hf_fields: ClassVar = BackboneConfig.hf_fields | {
        "activation": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "global_every": "global_attn_every_n_layers",
        "window": "local_attention",
        "global_theta": "global_rope_theta",
        "local_theta": "local_rope_theta",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "norm_bias": "norm_bias",
        "decoder_bias": "decoder_bias",
        "head_bias": "classifier_bias",
        "head_activation": "classifier_activation",
        "classifier_pooling": "classifier_pooling",
    }
    hf_words: ClassVar = "embeddings.tok_embeddings.weight"
    hf_bases: ClassVar[tuple[str, ...]] = ("model.",)
    # Both are the same head; a file has one of them.
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pooler": ("{model}head.", "{model}pooler."),
        "mlm_head": ("{model}head.", "{model}decoder."),
    }
    position_free: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        activation(self.head_activation)
        if self.classifier_pooling not in _POOLINGS:
            raise UserError(
                f"classifier_pooling={self.classifier_pooling!r} is not known; "
                + nearest(self.classifier_pooling, _POOLINGS)
            )
        if self.global_every < 1 or self.window < 2:
            raise UserError(
                f"global_every={self.global_every} with window={self.window} is not valid; "
                "expected at least 1 layer and at least 2 tokens"
            )
        if self.hidden_size // self.num_heads % 2:
            raise UserError(
                f"heads of {self.hidden_size // self.num_heads} dimensions cannot be rotated in "
                "pairs; expected an even hidden_size / num_heads"
            )

    def build(self, runtime: Runtime) -> ModernBert:
        return ModernBert(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return ModernLayers(self, runtime, count, embedded=False)

    @property
    def classifier_dropout(self) -> float:
        return 0.0

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        raw = super().to_hf(labels)
        return (
            raw if labels is None else raw | {self.hf_classifier_dropout: self.classifier_dropout}
        )

    @property
    def pooler_rows(self) -> int | None:
        return 1 if self.classifier_pooling == "cls" else None

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        found = cls.taken(raw)
        ropes = raw.get("rope_parameters") or {}
        for kind, field in ((_GLOBAL, "global_theta"), (_LOCAL, "local_theta")):
            rope = ropes.get(kind) or {}
            if rope.get("rope_type", "default") != "default" or raw.get("rope_scaling"):
                raise UserError(
                    f"{raw.get('rope_scaling') or rope} of a ModernBERT scales rotary positions, "
                    "which is not supported; expected rope_type 'default'"
                )
            if rope.get("rope_theta") is not None:
                found[field] = rope["rope_theta"]
        # Files that say that there is no other base for local layers mean the same one.
        if "local_theta" not in found and "local_rope_theta" in raw:
            found["local_theta"] = found.get("global_theta", cls.global_theta)
        if kinds := raw.get("layer_types"):
            found["global_every"] = _global_every(kinds)
        return cls(**found | parts)

    @classmethod
    def hf_has(cls, part: str, raw: Mapping[str, Any], tensors: set[str], table: Table) -> bool:
        # The head's tensors have the same names in a classifier and in a language model.
        classifies = any(name.endswith(_CLASSIFIER) for name in raw.get("architectures") or ())
        if part == "mlm_head":
            return not classifies and super().hf_has(part, raw, tensors, table)
        own = {slot.name for path, slot in table.items() if path.startswith("pooler/")}
        if classifies:
            own = {name.replace("pooler.", "head.") for name in own}
        return bool(own & tensors)

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        return {f"{model}decoder.weight": f"{encoder}{cls.hf_words}"}

    def table(self, encoder: str = "", model: str = "") -> Table:
        found: Table = {"embeddings/word/embedding": Slot(f"{encoder}{self.hf_words}")}
        found |= norm("embeddings/norm", f"{encoder}embeddings.norm", self.norm_bias)
        found |= under("layers/stack_first", self._layer_table(f"{encoder}layers.0", first=True))
        for i in range(1, self.num_layers):
            found |= under(f"layers/layers/{i - 1}", self._layer_table(f"{encoder}layers.{i}"))
        found |= norm("layers/stack_norm", f"{encoder}final_norm", self.norm_bias)
        if self.mlm_head:
            found |= self._head_table("mlm_head", f"{model}head")
            if self.decoder_bias:
                found["mlm_head/bias"] = Slot(f"{model}decoder.bias")
        if self.pooler:
            # transformers has no model with both, so the names beside an MLM head are our own.
            name = "pooler" if self.mlm_head else "head"
            found |= self._head_table("pooler", f"{model}{name}")
        return found

    def stack_table(self, count: int, prefix: str) -> Table:
        found = norm("stack_norm", f"{prefix}final_norm", self.norm_bias)
        for i in range(count):
            found |= under(f"layers/{i}", self._layer_table(f"{prefix}{i}"))
        return found

    def _layer_table(self, prefix: str, first: bool = False) -> Table:
        found = dense("attention/qkv", f"{prefix}.attn.Wqkv", self.attention_bias)
        found |= dense("attention/output", f"{prefix}.attn.Wo", self.attention_bias)
        found |= dense("mlp/up", f"{prefix}.mlp.Wi", self.mlp_bias)
        found |= dense("mlp/down", f"{prefix}.mlp.Wo", self.mlp_bias)
        found |= norm("mlp_norm", f"{prefix}.mlp_norm", self.norm_bias)
        return (
            found
            if first
            else found | norm("attention_norm", f"{prefix}.attn_norm", self.norm_bias)
        )

    def _head_table(self, path: str, name: str) -> Table:
        return dense(f"{path}/dense", f"{name}.dense", self.head_bias) | norm(
            f"{path}/norm", f"{name}.norm", self.norm_bias
        )


def _global_every(kinds: Sequence[str]) -> int:
    """The period of config.json's layer_types."""
    every = next((i for i, kind in enumerate(kinds) if i and kind == _GLOBAL), max(len(kinds), 1))
    if list(kinds) != [_LOCAL if i % every else _GLOBAL for i in range(len(kinds))]:
        raise UserError(
            f"layer_types={list(kinds)} is not supported; expected {_GLOBAL} first and again after "
            f"the same number of layers of {_LOCAL}"
        )
    return every


class ModernLayers(nn.Module):
    """Layers of a ModernBERT and the norm after them.

    embedded: they read normalised embeddings, so that the first has no norm before its attention.
    """

    config: ModernBertConfig
    runtime: Runtime
    count: int
    embedded: bool

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        before = int(self.embedded)
        if self.embedded:
            self.stack_first = ModernLayer(config, runtime, normalise=False)
        if self.count > before:
            make = partial(ModernLayer, config, runtime, first=before)
            self.layers = Layers(make, self.count - before, runtime)
        self.stack_norm = layer_norm(config, runtime)

    def __call__(
        self,
        x: Array,
        lengths: Array | None,
        keys: Array | None,
        wanted: Sequence[int] = (),
        rows: int | None = None,
    ) -> tuple[Array, dict[int, Array]]:
        x = x.astype(self.runtime.compute_dtype)
        states = {0: x}
        before = int(self.embedded)
        if self.embedded:
            x = self._first(x, lengths, keys, rows if self.count == 1 else None)
            states[1] = x
        if self.count > before:
            inner = tuple(number - before for number in wanted if before <= number < self.count)
            x, found = self.layers(x, lengths, keys, wanted=inner, rows=rows)
            states |= {number + before: state for number, state in found.items()}
        x = self.stack_norm(x)
        states[self.count] = x
        return x, {number: states[number] for number in wanted}

    def _first(
        self, x: Array, lengths: Array | None, keys: Array | None, rows: int | None
    ) -> Array:
        if self.is_initializing():
            return self.stack_first(x, 0, lengths, keys, rows)
        layer = self.stack_first.clone(parent=None)

        def apply(weights: Any, x: Array) -> Array:
            return layer.apply({"params": weights}, x, 0, lengths, keys, rows)

        weights = nn.meta.unbox(self.stack_first.variables["params"])
        return rematerialise(apply, self.runtime)(weights, x)


class ModernEmbeddings(nn.Module):
    """Words, normalised."""

    config: ModernBertConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.truncated_normal(config.initializer_range)
        self.word = Embedding(config.vocab_size, config.hidden_size, "vocab", init)
        self.norm = layer_norm(config, self.runtime)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = shard(self.norm(self.word(ids)), "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.embedding_dropout, self.runtime.dropout)


class ModernBert(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: ModernBertConfig
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.embeddings = ModernEmbeddings(config, runtime)
        self.layers = ModernLayers(config, runtime, config.num_layers, embedded=True)
        if config.pooler:
            self.pooler = PredictionHead(config, runtime)
        if config.mlm_head:
            self.mlm_head = WordHead(config, runtime)

    def pool(self, x: Array, lengths: Array | None, keys: Array | None) -> Array:
        mean = self.config.classifier_pooling == "mean"
        return self.pooler(mean_pool(x, lengths) if mean else x[:, 0])
