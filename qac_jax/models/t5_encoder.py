"""T5's encoder by itself (Raffel et al., 2020): what GTR and sentence-t5 make vectors with.

Parameters, where every norm is {"scale"} and no projection has a bias:

    {"embeddings": {"word": {"embedding"}},
     "layers": {"stack_bias": {"embedding": [32, heads]},
                "layers": {"0": {"attention_norm", "attention", "mlp_norm", "mlp"}, "1": …},
                "stack_norm"}}

All layers share the scores of distances. Norms come first, sums after; the last hidden state is
that of the final norm. There are no positions, token types, pooler and word predictions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.architecture import register
from qac_jax.models.backbone import Backbone, BackboneConfig
from qac_jax.models.layers import Array, Embedding, Runtime, dropout, shard
from qac_jax.models.t5 import T5Config
from qac_jax.models.t5_layers import EncoderBlock, RelativeBias, RMSNorm, site
from qac_jax.models.tensor_names import Slot, Table
from qac_jax.models.transformer import Layers


@register
@dataclasses.dataclass(frozen=True)
class T5EncoderConfig(BackboneConfig):
    """A T5 encoder's architecture.

    It knows no positions but distances; max_positions only says how long texts may be.
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

    display_name: ClassVar = "T5 encoder"
    model_types: ClassVar[tuple[str, ...]] = T5Config.model_types
    hf_class: ClassVar = "T5Encoder"
    hf_fields: ClassVar = {
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "intermediate_size": "d_ff",
        "max_positions": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "hidden_dropout": "dropout_rate",
        "pad_id": "pad_token_id",
        "head_size": "d_kv",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "feed_forward": "feed_forward_proj",
        "initializer_factor": "initializer_factor",
        "eos_id": "eos_token_id",
    }
    hf_words: ClassVar = "shared.weight"
    position_free: ClassVar = True

    def __post_init__(self) -> None:
        if self.mlm_head or self.pooler:
            raise UserError(
                f"a {self.display_name} has neither a [MASK] token nor a pooler, so it predicts no "
                "masked words and classifies nothing; choose another encoder, or train the T5 as "
                "a generator"
            )
        if not 0.0 <= self.hidden_dropout < 1.0:
            raise UserError(f"hidden_dropout={self.hidden_dropout} is not in [0, 1)")
        _ = self.whole  # which checks the rest

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        return T5Config.is_encoder(raw)

    @cached_property
    def whole(self) -> T5Config:
        """The T5 that this is the encoder of."""
        return T5Config(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            d_kv=self.head_size,
            d_ff=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            feed_forward=self.feed_forward,
            dropout=self.hidden_dropout,
            layer_norm_eps=self.layer_norm_eps,
            initializer_factor=self.initializer_factor,
        )

    def build(self, runtime: Runtime) -> T5Encoder:
        return T5Encoder(self, runtime)

    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        return T5Layers(self, runtime, count)

    @property
    def embedding_std(self) -> float:
        return self.initializer_factor

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        if labels is not None:
            raise _no_classifier()
        return super().to_hf() | {
            "is_encoder_decoder": False,
            "use_cache": False,
        }

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        del encoder, model
        return {"encoder.embed_tokens.weight": cls.hf_words}

    def table(self, encoder: str = "", model: str = "") -> Table:
        del encoder, model  # a T5's names have no prefix
        found: Table = {"embeddings/word/embedding": Slot(self.hf_words)}
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

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        raise _no_classifier()


def _no_classifier() -> UserError:
    return UserError("a T5 encoder is not read as a sequence classifier; choose another encoder")


# Parts of the stack that are not layers.
_OWN = {
    "norm/scale": "stack_norm/scale",
    "relative_bias/embedding": "stack_bias/embedding",
}


class T5Layers(nn.Module):
    """Layers of a T5's encoder, the scores of distances that they share, and the norm after."""

    config: T5EncoderConfig
    runtime: Runtime
    count: int

    def setup(self) -> None:
        config, runtime = self.config.whole, self.runtime
        self.stack_bias = RelativeBias(config, bidirectional=True)
        self.layers = Layers(partial(EncoderBlock, config, runtime), self.count, runtime)
        self.stack_norm = RMSNorm(config, runtime.compute_dtype)

    def __call__(
        self,
        x: Array,
        lengths: Array | None,
        keys: Array | None,
        wanted: Sequence[int] = (),
        rows: int | None = None,
    ) -> tuple[Array, dict[int, Array]]:
        positions = jnp.arange(x.shape[1])
        bias = self.stack_bias(positions, positions)
        inner = tuple(number for number in wanted if number < self.count)
        x, states = self.layers(x, lengths, bias, keys, wanted=inner, rows=rows)
        rate = self.config.hidden_dropout
        x = dropout(self.stack_norm(x), keys, site(self.count), rate, self.runtime.dropout)
        if self.count in wanted:
            states[self.count] = x
        return x, states


class T5Embeddings(nn.Module):
    """Words."""

    config: T5EncoderConfig
    runtime: Runtime

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(config.initializer_factor)
        self.word = Embedding(config.vocab_size, config.hidden_size, "vocab", init)

    def __call__(self, ids: Array, token_types: Array | None, keys: Array | None) -> Array:
        x = shard(self.word(ids).astype(self.runtime.compute_dtype), "batch", "length", None)
        return dropout(x, keys, 0, self.config.hidden_dropout, self.runtime.dropout)


class T5Encoder(Backbone):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: T5EncoderConfig
    runtime: Runtime = Runtime()

    embedding_class: ClassVar = T5Embeddings
