"""T5 (v1.0, v1.1): encoder, teacher-forced decoder, and decoding one token at a time.

    memory = model.apply(variables, ids, lengths, method="encode")
    logits = model.apply(variables, targets_in, memory, lengths, method="decode")
    cache = model.apply(variables, memory, lengths, 64, method="init_cache")
    logits, cache = model.apply(variables, ids, cache, method="step")

Beside it T5's encoder by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.errors import UserError, nearest
from qac_jax.models import backbone, t5_layers
from qac_jax.models.backbone import Architecture, BackboneConfig, Table, named, register
from qac_jax.models.heads import log_likelihood, tied_logits
from qac_jax.models.layers import Array, Embedding, Runtime, dropout, shard
from qac_jax.models.packing import Keys, Lengths, Rows
from qac_jax.models.t5_layers import FEED_FORWARD, Cache, EncoderBlock, RMSNorm, Stack, site
from qac_jax.models.transformer import Layers


_RELATIVE_BIAS = "relative_attention_bias.weight"


@register
@dataclasses.dataclass(frozen=True)
class T5Config(Architecture):
    """T5's shape. tied: the embedding is also the output matrix; scaled: its input is × d^-½."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    num_buckets: int = 32
    max_distance: int = 128
    feed_forward: str = "relu"
    tied: bool = True
    scaled: bool = True
    dropout: float = 0.1
    layer_norm_eps: float = 1e-6
    initializer_factor: float = 1.0
    pad_id: int = 0
    eos_id: int = 1
    start_id: int = 0

    display_name: ClassVar = "T5"
    model_types: ClassVar[tuple[str, ...]] = ("t5", "mt5")  # mT5 is a T5 v1.1
    hf_fields: ClassVar = {
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "feed_forward": "feed_forward_proj",
        "dropout": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
        "pad_id": "pad_token_id",
        "eos_id": "eos_token_id",
        "start_id": "decoder_start_token_id",
        # What these are is said in other words.
        **dict.fromkeys(("num_decoder_layers", "tied", "scaled"), ""),
    }
    hf_words: ClassVar = "shared.weight"
    # An output matrix of its own; where it equals the embedding, the two are tied.
    hf_names: ClassVar = {"lm_head/embedding": "lm_head.weight"}
    hf_ignored: ClassVar[tuple[str, ...]] = (
        f"decoder.block.0.layer.1.EncDecAttention.{_RELATIVE_BIAS}",
    )
    hf_tied: ClassVar = dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        "shared.weight",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feed_forward not in FEED_FORWARD:
            raise UserError(
                f"feed_forward={self.feed_forward!r} is not a T5 that is known here; "
                + nearest(self.feed_forward, FEED_FORWARD)
            )
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout={self.dropout} is not in [0, 1)")
        # The first half of a side's buckets are single distances; there must be one, and the
        # logarithmic ones must lie beyond.
        half = self.num_buckets // 2
        if half < 2 or self.num_buckets % 2 or self.max_distance <= half:
            raise UserError(
                f"num_buckets={self.num_buckets} with max_distance={self.max_distance} is no table "
                "of relative positions; expected an even number from 4 and more than its half"
            )

    def build(self, runtime: Runtime) -> T5:
        return T5(self, runtime)

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        return super().reads(raw) and not cls.is_encoder(raw)

    @classmethod
    def is_encoder(cls, raw: Mapping[str, Any]) -> bool:
        alone = any(name.endswith("EncoderModel") for name in raw.get("architectures") or ())
        return alone and raw.get("model_type") in cls.model_types

    @property
    def hidden_size(self) -> int:  # type: ignore[override]
        return self.d_model

    @property
    def bias_std(self) -> float:
        return self.initializer_factor * self.d_model**-0.5

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        # Hugging Face scales the decoder's output where embeddings are tied.
        named = bool(raw.get("tie_word_embeddings", raw["model_type"] != "mt5"))
        fields = cls.taken(raw)
        return cls(
            tied=not parts["lm_head"],
            scaled=bool(raw.get("scale_decoder_outputs", named)),
            num_decoder_layers=raw.get("num_decoder_layers") or fields.get("num_layers", 6),
            **fields,
        )

    def to_hf(self) -> dict[str, Any]:
        return super().to_hf() | {
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "num_decoder_layers": self.num_decoder_layers,
            "tie_word_embeddings": self.tied,
            "scale_decoder_outputs": self.scaled,
        }

    def hf_files(self) -> Mapping[str, Mapping[str, Any]]:
        raw = self.to_hf()
        tokens = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        return {"generation_config.json": {name: raw[name] for name in tokens}}

    def table(self, encoder: str = "", model: str = "") -> Table:
        del encoder, model  # a T5's names have no prefix
        gated = FEED_FORWARD[self.feed_forward][1]
        up = {"mlp/gate": "wi_0", "mlp/up": "wi_1"} if gated else {"mlp/up": "wi"}
        names = {"shared/embedding": "shared.weight"} | ({} if self.tied else self.hf_names)
        parts = [("attention", "SelfAttention"), ("cross_attention", "EncDecAttention")]
        for stack, count in (("encoder", self.num_layers), ("decoder", self.num_decoder_layers)):
            first = f"{stack}.block.0.layer.0.SelfAttention"
            names[f"{stack}/relative_bias/embedding"] = f"{first}.{_RELATIVE_BIAS}"
            names[f"{stack}/norm"] = f"{stack}.final_layer_norm"
            own = parts[: 1 + (stack == "decoder")]
            for i in range(count):
                ours, theirs = f"{stack}/layers/{i}", f"{stack}.block.{i}.layer"
                for place, (path, name) in enumerate(own):
                    for inner in ("query", "key", "value", "output"):
                        names[f"{ours}/{path}/{inner}"] = f"{theirs}.{place}.{name}.{inner[0]}"
                    names[f"{ours}/{path}_norm"] = f"{theirs}.{place}.layer_norm"
                for path, name in {**up, "mlp/down": "wo"}.items():
                    names[f"{ours}/{path}"] = f"{theirs}.{len(own)}.DenseReluDense.{name}"
                names[f"{ours}/mlp_norm"] = f"{theirs}.{len(own)}.layer_norm"
        return {path: slot for path, slot in named(names).items() if not path.endswith("/bias")}


class T5(nn.Module):
    """Encoder–decoder. Called with all inputs, it gives the teacher-forced logits."""

    config: T5Config
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        init = nn.initializers.normal(config.initializer_factor)
        self.shared = Embedding(config.vocab_size, config.d_model, "vocab", init)
        self.encoder = Stack(config, runtime, decoder=False)
        self.decoder = Stack(config, runtime, decoder=True)
        if not config.tied:
            self.lm_head = Embedding(config.vocab_size, config.d_model, "vocab", init)

    def __call__(
        self, ids: Array, lengths: Array, targets_in: Array, keys: Array | None = None
    ) -> Array:
        """Logits [B, T, vocabulary] of the token after each of targets_in."""
        memory = self.encode(ids, lengths, keys)
        return self.decode(targets_in, memory, lengths, keys)

    @staticmethod
    def example_inputs() -> tuple[Array, ...]:
        return *backbone.example_texts(), backbone.example_texts()[0]

    def in_common(self) -> None:
        """Arrays that all texts share besides parameters: none (see `PointerGenerator`)."""

    def encode(
        self, ids: Array, lengths: Array, keys: Array | None = None, shared: None = None
    ) -> Array:
        return self.encode_states(ids, lengths, keys)[0]

    def encode_states(
        self, ids: Array, lengths: Array, keys: Array | None = None, wanted: Sequence[int] = ()
    ) -> tuple[Array, dict[int, Array]]:
        """The encoder's output, and of the wanted layers (0: embeddings) what they give on."""
        positions = jnp.arange(ids.shape[1])
        bias = self.encoder.relative_bias(positions, positions)
        return self.encoder(self._embed(ids), keys, wanted, lengths, bias)

    def decode(self, *arguments: Any, **options: Any) -> Array:
        """Logits [B, T, vocabulary] of what `decode_hidden` takes."""
        return self.logits(self.decode_hidden(*arguments, **options))

    def decode_hidden(
        self,
        targets_in: Array,
        memory: Array,
        lengths: Array,
        keys: Array | None = None,
        beside: int = 1,
    ) -> Array:
        """The decoder's output [B, T, d_model], which `logits` takes; targets_in are the targets
        shifted right by start_id, beside: see the stack."""
        return self.decoder.forced(self._embed(targets_in), memory, lengths, keys, beside)

    def logits(self, hidden: Array) -> Array:
        """Scores of every token, in at least fp32."""
        config = self.config
        if config.scaled:
            hidden = hidden * config.d_model**-0.5
        table = (self.shared if config.tied else self.lm_head).table
        hidden = hidden.astype(self.runtime.compute_dtype)
        scores = tied_logits(hidden, table, None, False, self.runtime.mixed)
        return shard(scores, "batch", "length", "vocab")

    def counted_likelihood(
        self,
        targets_in: Array,
        targets: Array,
        counted: Array,
        memory: Array,
        lengths: Array,
        beside: int = 1,
    ) -> Array:
        """log p [B, T] of targets where counted [B, T], elsewhere 0; without gradients."""
        hidden = self.decode_hidden(targets_in, memory, lengths, None, beside)
        return log_likelihood(self.logits, hidden, targets, counted)

    def _embed(self, ids: Array) -> Array:
        x = self.shared(ids).astype(self.runtime.compute_dtype)
        return shard(x, "batch", "length", None)

    def init_cache(self, memory: Array, lengths: Array, max_length: int, copies: int = 1) -> Cache:
        return self.decoder.init_cache(memory, lengths, max_length, copies)

    def step(self, ids: Array, cache: Cache) -> tuple[Array, Cache]:
        """Logits [R, vocabulary] of the token after ids [R], and the cache with ids written in."""
        hidden, cache = self.decoder.step(self._embed(ids[:, None]), cache)
        return self.logits(hidden)[:, 0], cache


def shift_right(targets: Array, start_id: int) -> Array:
    """The decoder's input for `targets`: the start token, then all but the last."""
    start = jnp.full((*targets.shape[:-1], 1), start_id, targets.dtype)
    return jnp.concatenate([start, targets[..., :-1]], axis=-1)


class T5Embeddings(nn.Module):
    config: T5EncoderConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.initializer_factor)
        self.word = Embedding(config.vocab_size, config.hidden_size, "vocab", init)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = shard(self.word(ids).astype(self.runtime.compute_dtype), "batch", "length", None)
        return dropout(x, keys, 0, self.config.hidden_dropout)


# Fields of a T5's encoder -> those of a T5.
_FIELDS = {
    name: name
    for name in (
        "vocab_size num_layers num_heads layer_norm_eps pad_id eos_id num_buckets max_distance "
        "feed_forward initializer_factor"
    ).split()
} | {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "head_size": "d_kv",
    "hidden_dropout": "dropout",
}


@register
@dataclasses.dataclass(frozen=True)
class T5EncoderConfig(BackboneConfig):
    """T5's encoder by itself (Raffel et al., 2020): what GTR and sentence-t5 make vectors with.

    It knows no positions but distances; max_positions only says how long texts may be. There are no
    token types, pooler and word predictions. Parameters, where every norm is {"scale"} and no
    projection has a bias:

        {"embeddings": {"word": {"embedding"}},
         "layers": {"stack_bias": {"embedding": [32, heads]}, "stack_norm",
                    "layers": {"0": {"attention_norm", "attention", "mlp_norm", "mlp"}, "1": …}}}
    """

    vocab_size: int = 32128
    hidden_size: int = 512
    num_layers: int = 6
    num_heads: int = 8
    intermediate_size: int = 2048
    layer_norm_eps: float = 1e-6
    head_size: int = 64
    num_buckets: int = 32
    max_distance: int = 128
    feed_forward: str = "relu"
    initializer_factor: float = 1.0
    eos_id: int = 1

    embedding_class: ClassVar = T5Embeddings
    display_name: ClassVar = "T5 encoder"
    model_types: ClassVar[tuple[str, ...]] = T5Config.model_types
    hf_fields: ClassVar = {
        "max_positions": "n_positions",
        **dict.fromkeys(("activation", "attention_dropout", "initializer_range"), ""),
        **dict.fromkeys(backbone.PARTS, ""),
        **{ours: T5Config.hf_keys()[field] for ours, field in _FIELDS.items()},
    }
    hf_words: ClassVar = "shared.weight"
    hf_tied: ClassVar = {"encoder.embed_tokens.weight": "shared.weight"}
    position_free: ClassVar = True

    def __post_init__(self) -> None:
        Architecture.__post_init__(self)
        if self.mlm_head or self.pooler:
            raise UserError(
                f"a {self.display_name} has neither a [MASK] token nor a pooler, so it predicts no "
                "masked words and classifies nothing; choose another encoder, or train the T5 as "
                "a generator"
            )
        _ = self.whole  # which checks the rest

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        return T5Config.is_encoder(raw)

    @cached_property
    def whole(self) -> T5Config:
        """The T5 that this is the encoder of."""
        return T5Config(**{field: getattr(self, ours) for ours, field in _FIELDS.items()})

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return T5Layers(self, runtime, count)

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        return super().to_hf() | {"is_encoder_decoder": False, "use_cache": False}

    def table(self, encoder: str = "", model: str = "") -> Table:
        del encoder, model  # a T5's names have no prefix
        found: Table = {"embeddings/word/embedding": backbone.Slot(self.hf_words)}
        for path, slot in self.whole.table().items():
            stack, _, rest = path.partition("/")
            if stack == "encoder":
                found[f"layers/{_OWN.get(rest, rest)}"] = slot
        return found

    def stack_table(self, count: int, prefix: str) -> Table:
        # transformers has no such stack by itself; names begin as in a T5's encoder.
        config = dataclasses.replace(self, num_layers=count)
        table = config.table().items()
        return {
            path.removeprefix("layers/"): slot._replace(name=prefix + slot.name)
            for path, slot in table
            if path.startswith("layers/")
        }


# Parts of the stack that are not layers.
_OWN = {"norm/scale": "stack_norm/scale", "relative_bias/embedding": "stack_bias/embedding"}


def encoder_of(config: T5Config, params: Mapping[str, Any]) -> tuple[T5EncoderConfig, Any]:
    """A T5's encoder by itself, and its parameters."""
    known = {ours: getattr(config, field) for ours, field in _FIELDS.items()}
    own = params["encoder"]
    stack = {"stack_bias": own["relative_bias"], "stack_norm": own["norm"], "layers": own["layers"]}
    return T5EncoderConfig(**known), {"embeddings": {"word": params["shared"]}, "layers": stack}


class T5Layers(nn.Module):
    """Layers of a T5's encoder, the scores of distances that they share, and the norm after."""

    config: T5EncoderConfig
    runtime: Runtime
    count: int

    def setup(self) -> None:
        config, runtime = self.config.whole, self.runtime
        self.stack_bias = t5_layers.RelativeBias(config, config.bias_std, bidirectional=True)
        self.layers = Layers(partial(EncoderBlock, config, runtime), self.count, runtime)
        self.stack_norm = RMSNorm(config, runtime.compute_dtype)

    def __call__(
        self, x: Array, lengths: Lengths, keys: Keys, wanted: Sequence[int] = (), rows: Rows = None
    ) -> tuple[Array, dict[int, Array]]:
        positions = jnp.arange(x.shape[1])
        bias = self.stack_bias(positions, positions)
        inner = tuple(number for number in wanted if number < self.count)
        x, states = self.layers(x, lengths, bias, keys, wanted=inner, rows=rows)
        rate = self.config.hidden_dropout
        x = dropout(self.stack_norm(x), keys, site(self.count), rate)
        if self.count in wanted:
            states[self.count] = x
        return x, states
