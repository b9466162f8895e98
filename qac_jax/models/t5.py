"""T5 (v1.0, v1.1): encoder, teacher-forced decoder, and decoding one token at a time.

memory = model.apply(variables, ids, lengths, method="encode")
logits = model.apply(variables, targets_in, memory, lengths, method="decode")
cache = model.apply(variables, memory, lengths, 64, method="init_cache")
logits, cache = model.apply(variables, ids, cache, method="step")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.errors import UserError, nearest
from qac_jax.models.architecture import Architecture, register
from qac_jax.models.layers import Array, Embedding, Runtime, shard
from qac_jax.models.mlm_head import tied_logits
from qac_jax.models.t5_layers import FEED_FORWARD
from qac_jax.models.t5_stack import Cache, Stack
from qac_jax.models.tensor_names import Slot, Table
from qac_jax.models.word_likelihood import log_likelihood


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
    hf_class: ClassVar = "T5"
    hf_fields: ClassVar = {
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "d_kv": "d_kv",
        "d_ff": "d_ff",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "feed_forward": "feed_forward_proj",
        "dropout": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
        "initializer_factor": "initializer_factor",
        "pad_id": "pad_token_id",
        "eos_id": "eos_token_id",
        "start_id": "decoder_start_token_id",
    }
    hf_words: ClassVar = "shared.weight"
    # An output matrix of its own; where it equals the embedding, the two are tied.
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {"lm_head": ("lm_head.",)}
    hf_ignored: ClassVar[tuple[str, ...]] = (
        f"decoder.block.0.layer.1.EncDecAttention.{_RELATIVE_BIAS}",
    )
    word_embedding: ClassVar = ("shared", "embedding")

    def __post_init__(self) -> None:
        if self.feed_forward not in FEED_FORWARD:
            raise UserError(
                f"feed_forward={self.feed_forward!r} is not a T5 that is known here; "
                + nearest(self.feed_forward, FEED_FORWARD)
            )
        # The first half of a side's buckets are single distances; there must be one, and the
        # logarithmic ones must lie beyond.
        if (
            self.num_buckets < 4
            or self.num_buckets % 2
            or self.max_distance <= self.num_buckets / 2
        ):
            raise UserError(
                f"num_buckets={self.num_buckets} with max_distance={self.max_distance} is not a "
                "valid table of relative positions; expected an even number from 4 and a "
                "distance beyond its half"
            )

    def build(self, runtime: Runtime) -> T5:
        return T5(self, runtime)

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        return super().reads(raw) and not cls.is_encoder(raw)

    @classmethod
    def is_encoder(cls, raw: Mapping[str, Any]) -> bool:
        """Whether a config.json is that of an encoder by itself (t5_encoder.py)."""
        alone = any(name.endswith("EncoderModel") for name in raw.get("architectures") or ())
        return alone and raw.get("model_type") in cls.model_types

    @property
    def hidden_size(self) -> int:
        return self.d_model

    @property
    def embedding_std(self) -> float:
        return self.initializer_factor

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

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        del encoder, model
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        return dict.fromkeys(names, cls.hf_words)

    def table(self, encoder: str = "", model: str = "") -> Table:
        del encoder, model  # a T5's names have no prefix
        table: Table = {"shared/embedding": Slot("shared.weight")}
        if not self.tied:
            table["lm_head/embedding"] = Slot("lm_head.weight")
        for stack, count in (("encoder", self.num_layers), ("decoder", self.num_decoder_layers)):
            table[f"{stack}/norm/scale"] = Slot(f"{stack}.final_layer_norm.weight")
            bias = f"{stack}.block.0.layer.0.SelfAttention.{_RELATIVE_BIAS}"
            table[f"{stack}/relative_bias/embedding"] = Slot(bias)
            for i in range(count):
                table |= self._block_table(f"{stack}/layers/{i}", f"{stack}.block.{i}.layer.")
        return table

    def _block_table(self, ours: str, theirs: str) -> Table:
        parts = [("attention", "SelfAttention", "attention_norm")]
        if ours.startswith("decoder"):
            parts.append(("cross_attention", "EncDecAttention", "cross_attention_norm"))
        table: Table = {}
        for place, (path, name, norm) in enumerate(parts):
            for inner in ("query", "key", "value", "output"):
                slot = Slot(f"{theirs}{place}.{name}.{inner[0]}.weight", transposed=True)
                table[f"{ours}/{path}/{inner}/kernel"] = slot
            table[f"{ours}/{norm}/scale"] = Slot(f"{theirs}{place}.layer_norm.weight")
        place = len(parts)
        gated = FEED_FORWARD[self.feed_forward][1]
        up = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
        for path, name in {**up, "down": "wo"}.items():
            slot = Slot(f"{theirs}{place}.DenseReluDense.{name}.weight", transposed=True)
            table[f"{ours}/mlp/{path}/kernel"] = slot
        table[f"{ours}/mlp_norm/scale"] = Slot(f"{theirs}{place}.layer_norm.weight")
        return table


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

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, ...]:
        """Arguments that initialise it."""
        ids = jnp.zeros((1, 2), jnp.int32)
        return ids, jnp.ones((1,), jnp.int32), ids

    def in_common(self) -> None:
        """What texts have in common besides parameters: nothing (see `PointerGenerator`)."""

    def encode(
        self, ids: Array, lengths: Array, keys: Array | None = None, shared: None = None
    ) -> Array:
        """The encoder's output [B, S, d_model]."""
        return self.encode_states(ids, lengths, keys)[0]

    def encode_states(
        self, ids: Array, lengths: Array, keys: Array | None = None, wanted: Sequence[int] = ()
    ) -> tuple[Array, dict[int, Array]]:
        """The encoder's output, and of the wanted layers (0: embeddings) what they give on."""
        positions = jnp.arange(ids.shape[1])
        bias = self.encoder.bias(positions, positions)
        return self.encoder(self._embed(ids), keys, wanted, lengths, bias)

    def decode(
        self,
        targets_in: Array,
        memory: Array,
        lengths: Array,
        keys: Array | None = None,
        beside: int = 1,
    ) -> Array:
        """Logits [B, T, vocabulary]; targets_in are the targets shifted right by start_id."""
        return self.logits(self.decode_hidden(targets_in, memory, lengths, keys, beside))

    def decode_hidden(
        self,
        targets_in: Array,
        memory: Array,
        lengths: Array,
        keys: Array | None = None,
        beside: int = 1,
    ) -> Array:
        """The decoder's output [B, T, d_model], which `logits` takes; beside: see the stack."""
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
        """An empty cache of `copies` rows a text."""
        return self.decoder.init_cache(memory, lengths, max_length, copies)

    def step(self, ids: Array, cache: Cache) -> tuple[Array, Cache]:
        """Logits [R, vocabulary] of the token after ids [R], and the cache with ids written in."""
        hidden, cache = self.decoder.step(self._embed(ids[:, None]), cache)
        return self.logits(hidden)[:, 0], cache


def shift_right(targets: Array, start_id: int) -> Array:
    """The decoder's input for `targets`: the start token, then all but the last."""
    start = jnp.full((*targets.shape[:-1], 1), start_id, targets.dtype)
    return jnp.concatenate([start, targets[..., :-1]], axis=-1)
