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
import jax.numpy as jnp
import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.models import layers, packing
from qac_jax.models.attention import attend, merge_heads, split_heads
from qac_jax.models.backbone import Backbone, BackboneConfig, Table, norm, register, under
from qac_jax.models.heads import mean_pool, tied_logits
from qac_jax.models.layers import Array, LayerNorm, Runtime, activation, dense_of, dropout, shard
from qac_jax.models.packing import Keys, Lengths, Rows
from qac_jax.models.transformer import INPUT_SITE, Layers, site


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
    hf_fields: ClassVar = BackboneConfig.hf_fields | {
        "activation": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "global_every": "global_attn_every_n_layers",
        "window": "local_attention",
        "global_theta": "global_rope_theta",
        "local_theta": "local_rope_theta",
        "head_bias": "classifier_bias",
        "head_activation": "classifier_activation",
    }
    hf_words: ClassVar = "embeddings.tok_embeddings.weight"
    hf_bases: ClassVar[tuple[str, ...]] = ("model.",)
    hf_tied: ClassVar = {"{model}decoder.weight": "{encoder}embeddings.tok_embeddings.weight"}
    hf_names: ClassVar = {
        "embeddings/word/embedding": "{encoder}embeddings.tok_embeddings.weight",
        "embeddings/norm": "{encoder}embeddings.norm",
        "pooler/dense": "{model}head.dense",
        "pooler/norm": "{model}head.norm",
        "mlm_head/dense": "{model}head.dense",
        "mlm_head/norm": "{model}head.norm",
        "mlm_head/bias": "{model}decoder.bias",
    }
    hf_layers: ClassVar = "{encoder}layers."
    hf_layer: ClassVar = {
        "attention/qkv": "attn.Wqkv",
        "attention/output": "attn.Wo",
        "attention_norm": "attn_norm",
        "mlp/up": "mlp.Wi",
        "mlp/down": "mlp.Wo",
        "mlp_norm": "mlp_norm",
    }
    position_free: ClassVar = True
    classifier_rate: ClassVar = 0.0

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
    def hf_parts(cls) -> dict[str, tuple[str, ...]]:
        # Both are the same head; a file has one of them.
        parts = super().hf_parts()
        return parts | {"pooler": (*parts["pooler"], "{model}pooler.")}

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

    def table(self, encoder: str = "", model: str = "") -> Table:
        found: Table = {}
        for path, slot in super().table(encoder, model).items():
            if path.startswith("layers/layers/0/"):
                path = path.replace("layers/0", "stack_first", 1)
            elif path.startswith("layers/layers/"):
                _, _, number, rest = path.split("/", 3)
                path = f"layers/layers/{int(number) - 1}/{rest}"
            elif path.startswith("pooler/") and self.mlm_head:
                # transformers has no model with both, so the names beside an MLM head are our own.
                slot = slot._replace(name=slot.name.replace(f"{model}head.", f"{model}pooler.", 1))
            if not path.startswith("layers/stack_first/attention_norm"):
                found[path] = slot
        return self._with_biases(found)

    def stack_table(self, count: int, prefix: str) -> Table:
        found = norm("stack_norm", f"{prefix.removesuffix('layers.')}final_norm")
        return self._with_biases(found | under("layers", super().stack_table(count, prefix)))

    def _with_biases(self, table: Table) -> Table:
        """The table without the biases that the configuration has not."""
        biases = {
            "attention/qkv/bias": self.attention_bias,
            "attention/output/bias": self.attention_bias,
            "mlp/up/bias": self.mlp_bias,
            "mlp/down/bias": self.mlp_bias,
            "norm/bias": self.norm_bias,
            "pooler/dense/bias": self.head_bias,
            "mlm_head/dense/bias": self.head_bias,
            "mlm_head/bias": self.decoder_bias,
        }
        absent = tuple(path for path, has in biases.items() if not has)
        return {path: slot for path, slot in table.items() if not path.endswith(absent)}


def _global_every(kinds: Sequence[str]) -> int:
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
        self, x: Array, lengths: Lengths, keys: Keys, wanted: Sequence[int] = (), rows: Rows = None
    ) -> tuple[Array, dict[int, Array]]:
        x = x.astype(self.runtime.compute_dtype)
        states = {0: x}
        before = int(self.embedded)
        if self.embedded:
            x = self.stack_first(x, 0, lengths, keys, rows if self.count == 1 else None)
            states[1] = x
        if self.count > before:
            inner = tuple(number - before for number in wanted if before <= number < self.count)
            x, found = self.layers(x, lengths, keys, wanted=inner, rows=rows)
            states |= {number + before: state for number, state in found.items()}
        x = self.stack_norm(x)
        states[self.count] = x
        return x, {number: states[number] for number in wanted}


class ModernEmbeddings(nn.Module):
    config: ModernBertConfig
    runtime: Runtime

    def setup(self) -> None:
        config, width = self.config, self.config.hidden_size
        self.word = layers.Embedding(config.vocab_size, width, "vocab", initial(config))
        self.norm = layer_norm(config, self.runtime)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = shard(self.norm(self.word(ids)), "batch", "length", None)
        return dropout(x, keys, INPUT_SITE, self.config.embedding_dropout)


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


# Dropout places of a layer.
_PROBABILITIES, _ATTENTION, _MLP = range(3)


def layer_norm(config: Any, runtime: Runtime, name: str | None = None) -> LayerNorm:
    """A norm as the configuration says, with or without bias."""
    dtype = runtime.compute_dtype
    return LayerNorm(config.layer_norm_eps, dtype, config.norm_bias, name=name)


def initial(config: Any, added: bool = False) -> Any:
    """New weights; those whose product is added to the stream are smaller."""
    scale = (2 * config.num_layers) ** 0.5 if added else 1.0
    return nn.initializers.truncated_normal(config.initializer_range / scale)


def angles(length: int, width: int, theta: float) -> np.ndarray:
    """[length, width / 2]: how far each pair of dimensions is turned at each position."""
    pairs = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = 1.0 / np.float32(theta) ** pairs
    return np.arange(length, dtype=np.float32)[:, None] * frequencies


def rotate(x: Array, turn: Array, scale: float = 1.0) -> Array:
    """Rotary positions (Su et al., 2021): dimension i and i + width / 2 of x [B, H, L, width]
    are a pair, which is turned by turn[l, i]; scale multiplies the result."""
    wide = x.astype(layers.statistics_dtype(x.dtype))
    left, right = jnp.split(wide, 2, axis=-1)
    turn = turn.astype(wide.dtype)
    cos, sin = jnp.cos(turn) * scale, jnp.sin(turn) * scale
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


class ModernLayer(nn.Module):
    """Norm, attention, sum; norm, gated MLP, sum. `first` is the number of a stack's layer 0.

    Every global_every-th layer sees the whole text, the others a window on both sides of a token.
    """

    config: Any
    runtime: Runtime
    normalise: bool = True
    first: int = 0

    packs: ClassVar = (0, 1)

    @nn.compact
    def __call__(
        self, x: Array, index: int | Array, lengths: Lengths, keys: Keys, rows: int | None = None
    ) -> Array:
        config, runtime = self.config, self.runtime
        number = index + self.first
        h = layer_norm(config, runtime, "attention_norm")(x) if self.normalise else x
        mixed = ModernAttention(config, runtime, name="attention")(h, number, lengths, keys, rows)
        x = packing.first(x, lengths, rows) + mixed
        keys = keys if rows is None else packing.text_keys(keys)
        h = layer_norm(config, runtime, "mlp_norm")(x)
        x = x + GatedMlp(config, runtime, name="mlp")(h, number, keys)
        return shard(x, "batch", "length", None)


class ModernAttention(nn.Module):
    """Attention with rotary positions, over the whole text or a window."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(
        self, x: Array, number: int | Array, lengths: Lengths, keys: Keys, rows: int | None
    ) -> Array:
        config, runtime = self.config, self.runtime
        width, heads = config.hidden_size, config.num_heads
        bias, rate, into = config.attention_bias, config.attention_dropout, initial(config)
        fused = dense_of(runtime, 3 * width, ("embed", "heads"), into, bias, name="qkv")(x)
        fused = packing.unpack(shard(fused, "batch", "length", "heads"), lengths, "heads")
        query, key, value = (split_heads(part, heads) for part in jnp.split(fused, 3, axis=-1))
        turn, visible = self._positions(fused.shape[1], number)
        query = rotate(query, turn, (width // heads) ** -0.5)
        visible, key = visible if visible is None else visible[:rows], rotate(key, turn)
        options: Any = {"visible": visible, "keys": keys, "site": site(number, _PROBABILITIES)}
        options |= {"rate": rate}
        mixed = attend(query[:, :, :rows], key, value, lengths, runtime, **options)
        merged = packing.pack(merge_heads(mixed), lengths if rows is None else None, "heads")
        keys, out = keys if rows is None else packing.text_keys(keys), initial(config, added=True)
        output = dense_of(runtime, width, ("heads", "embed"), out, bias, name="output")
        return dropout(output(merged), keys, site(number, _ATTENTION), rate)

    def _positions(self, length: int, number: int | Array) -> tuple[Array, Array | None]:
        """Angles, and the visible pairs (None: all) of layer `number`, which a scan only knows
        at run time."""
        config = self.config
        width = config.hidden_size // config.num_heads
        everywhere = angles(length, width, config.global_theta)
        nearby = angles(length, width, config.local_theta)
        position = np.arange(length)
        near = np.abs(position[:, None] - position) <= config.window // 2
        whole = number % config.global_every == 0
        if isinstance(whole, bool):
            visible = None if whole or near.all() else jnp.asarray(near)
            return jnp.asarray(everywhere if whole else nearby), visible
        visible = None if near.all() else whole | jnp.asarray(near)
        return jnp.where(whole, everywhere, nearby), visible


class GatedMlp(nn.Module):
    """One product for the gate and what it multiplies; activation, product, down (GeGLU)."""

    config: Any
    runtime: Runtime

    @nn.compact
    def __call__(self, x: Array, number: int | Array, keys: Keys) -> Array:
        config, runtime = self.config, self.runtime
        inner, bias, into = config.intermediate_size, config.mlp_bias, initial(config)
        fused = dense_of(runtime, 2 * inner, ("embed", "mlp"), into, bias, name="up")(x)
        left, right = jnp.split(shard(fused, "batch", "length", "mlp"), 2, axis=-1)
        hidden = activation(config.activation)(left) * right
        hidden = dropout(hidden, keys, site(number, _MLP), config.hidden_dropout)
        width, out = config.hidden_size, initial(config, added=True)
        return dense_of(runtime, width, ("mlp", "embed"), out, bias, name="down")(hidden)


class PredictionHead(nn.Module):
    """Dense, activation, norm: what a classifier's output reads."""

    config: Any
    runtime: Runtime

    def setup(self) -> None:
        config, dtype = self.config, self.runtime.compute_dtype
        init, width = initial(config, added=True), config.hidden_size
        self.dense = layers.Dense(width, ("embed", None), dtype, init, config.head_bias)
        self.norm = layer_norm(config, self.runtime)

    def __call__(self, x: Array) -> Array:
        return self.norm(activation(self.config.head_activation)(self.dense(x)))


class WordHead(PredictionHead):
    """The same, then the word embedding as output matrix, and mostly a bias a word."""

    def setup(self) -> None:
        super().setup()
        self.bias = None
        if self.config.decoder_bias:
            zeros, shape = nn.initializers.zeros_init(), (self.config.vocab_size,)
            self.bias = layers.parameter(self, "bias", zeros, shape, ("vocab",))

    def __call__(  # type: ignore[override]
        self, hidden: Array, table: Array, padded: bool = False
    ) -> Array:
        x = super().__call__(hidden)
        return tied_logits(x, table, self.bias, padded, self.runtime.mixed)
