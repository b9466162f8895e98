"""Encoders that make a text a vector, and pairs of texts a score.

Parameters: a `DualEncoder` is {"encoder": tower} where both sides share it, else {"query":
tower, "passage": tower}; a tower is {"backbone": the encoder's, "projection": {"kernel", "bias"}
where there is one}. A `CrossEncoder` is {"backbone": with its pooler, "classifier": {"kernel",
"bias"}}.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError, nearest
from qac_jax.models import layers, t5
from qac_jax.models.backbone import Backbone, BackboneConfig, BackboneOutput, example_texts
from qac_jax.models.heads import POOLINGS, pool, windows
from qac_jax.models.layers import Array, Dense, Runtime, activation, shard, statistics_dtype
from qac_jax.models.t5 import T5
from qac_jax.models.transformer import OUTPUT_SITE


SIDES = ("query", "passage")


@dataclasses.dataclass(frozen=True)
class DualEncoderConfig:
    """Settings that turn hidden states into vectors, and how the texts of its training were read.

    projection is the width of a linear layer after pooling (None: there is none). scale
    multiplies the query vectors, so that a dot product of the two sides already carries it.
    Prompts, the form of titles and the limits in tokens (special ones included, 0: as many as
    there are positions) are for whoever tokenises the texts. Without include_prompt a prompt's
    tokens, and those before it, are not pooled. other_prompts (name, text) and the name of the
    prompt that sentence-transformers takes by default are only kept for its folders.
    """

    backbone: BackboneConfig
    tied: bool = True
    pooling: str = "cls"
    normalize: bool = False
    projection: int | None = None
    projection_bias: bool = True
    projection_activation: str = "identity"
    scale: float = 1.0
    query_prompt: str = ""
    passage_prompt: str = ""
    include_prompt: bool = True
    other_prompts: tuple[tuple[str, str], ...] = ()
    default_prompt_name: str = ""
    # A passage's title stands before a space, before [SEP] ("separate"), before [SEP] with token
    # types of its own ("segments"), or nowhere ("none").
    title: str = "space"
    query_length: int = 0
    passage_length: int = 0

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UserError(
                f"pooling={self.pooling!r} is not known; {nearest(self.pooling, POOLINGS)}"
            )
        prompts = tuple((name, text) for name, text in self.other_prompts)  # JSON gives lists
        object.__setattr__(self, "other_prompts", prompts)
        activation(self.projection_activation)
        if self.title == "segments" and self.backbone.token_types < 2:
            raise UserError(
                f"title='segments' gives titles a token type of their own, and "
                f"{self.backbone.display_name} has none; choose 'separate', 'space' or 'none'"
            )

    @property
    def width(self) -> int:
        return self.projection or self.backbone.hidden_size

    def pooled_rows(self, skip: int) -> int | None:
        """How many of the first positions the pooling reads (None: all)."""
        return skip + 1 if self.pooling == "cls" else None


def pooled(out: BackboneOutput, lengths: Array | None, name: str) -> Array:
    """One vector for each whole text: [CLS] as it is, or another pooling in at least fp32."""
    if name == "cls":
        return out.cls
    return pool(name, out.last.astype(statistics_dtype(out.last.dtype)), lengths)


def l2_normalize(x: Array) -> Array:
    """x over its length, at least 1e-12 (torch's `normalize`)."""
    square = jnp.square(x).sum(-1, keepdims=True)
    # rsqrt of the clamped square: a zero vector stays zero and has a finite gradient.
    return x * lax.rsqrt(jnp.maximum(square, 1e-24))


def backbone_of(module: nn.Module, params: Any) -> tuple[BackboneConfig, Any] | None:
    """The encoder in a model and its parameters, of two towers the passages'; None: it has none."""
    if isinstance(module, Backbone):
        return module.config, params
    if isinstance(module, CrossEncoder):
        return module.config, params["backbone"]
    if isinstance(module, T5):
        return t5.encoder_of(module.config, params)
    if isinstance(module, DualEncoder):
        tower = params["encoder" if module.config.tied else "passage"]
        return module.config.backbone, tower["backbone"]
    return None


class Tower(nn.Module):
    """One side: encoder, pooling, projection, normalisation."""

    config: DualEncoderConfig
    runtime: Runtime

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.backbone = config.backbone.build(runtime)
        if config.projection is not None:
            self.projection = Dense(
                config.projection,
                ("embed", None),
                runtime.compute_dtype,
                nn.initializers.normal(config.backbone.initializer_range),
                config.projection_bias,
            )

    def __call__(
        self,
        ids: Array,
        lengths: Array | None = None,
        token_types: Array | None = None,
        keys: Array | None = None,
        skip: int = 0,
        window: int = 0,
        hidden: Array | None = None,
    ) -> Array:
        config = self.config
        rows = config.pooled_rows(skip)
        if hidden is None:
            hidden = self.backbone(ids, lengths, token_types, keys, rows=rows).last
        hidden = hidden.astype(statistics_dtype(hidden.dtype))
        vector = pool(config.pooling, hidden, lengths, skip)
        if window:
            parts = windows(hidden, lengths, window, skip)
            vector = jnp.concatenate([vector[:, None], parts], 1)
        if config.projection is not None:
            vector = activation(config.projection_activation)(self.projection(vector))
            vector = vector.astype(hidden.dtype)
        if config.normalize:
            vector = l2_normalize(vector)
        return shard(vector, "batch", *[None] * (vector.ndim - 1))


class DualEncoder(nn.Module):
    """Queries and passages to vectors whose dot product is their relevance."""

    config: DualEncoderConfig
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        if self.config.tied:
            self.encoder = Tower(self.config, self.runtime)
        else:
            self.query = Tower(self.config, self.runtime)
            self.passage = Tower(self.config, self.runtime)

    def __call__(
        self,
        ids: Array,
        lengths: Array | None = None,
        token_types: Array | None = None,
        keys: Array | None = None,
        side: str = "passage",
        skip: int = 0,
        window: int = 0,
        hidden: Array | None = None,
    ) -> Array:
        """ids [B, L], lengths [B] -> vectors [B, width] in at least fp32.

        window: with the windows of this many tokens behind the text, [B, 1 + windows, width].

        side ("query" or "passage") chooses the tower where they are not tied, and whether the
        scale applies. skip: how many of the first tokens are not pooled. hidden: the last hidden
        states, where they are known. Initialising makes both towers.
        """
        if side not in SIDES:
            raise UserError(f"side={side!r} is not known; {nearest(side, SIDES)}")
        tower = self.encoder if self.config.tied else getattr(self, side)
        vector = tower(ids, lengths, token_types, keys, skip, window, hidden)
        if self.is_initializing() and not self.config.tied:
            (self.query if side == "passage" else self.passage)(ids, lengths, token_types)
        return vector * self.config.scale if side == "query" else vector

    example_inputs = staticmethod(example_texts)


class CrossEncoder(nn.Module):
    """[CLS] query [SEP] passage [SEP] -> 1 or 2 logits, in at least fp32.

    With two labels the second is "relevant". config must have its pooler. One that reads scores was
    trained on queries that begin with the passage's share of a first ranking's scores.
    """

    config: BackboneConfig
    runtime: Runtime = Runtime()
    labels: int = 1
    classifier_dropout: float | None = None  # None: what its architecture has
    reads_scores: bool = False

    def setup(self) -> None:
        if not self.config.pooler:
            raise UserError("a cross-encoder reads the pooled vector; set pooler=True")
        self.backbone = self.config.build(self.runtime)
        self.classifier = Dense(
            self.labels,
            ("embed", "labels"),
            self.runtime.compute_dtype,
            nn.initializers.normal(self.config.initializer_range),
        )

    def __call__(
        self,
        ids: Array,
        lengths: Array | None = None,
        token_types: Array | None = None,
        keys: Array | None = None,
        hidden: Array | None = None,
    ) -> Array:
        """ids, token_types [B, L] (types 0 for the query, 1 for the passage) -> [B, labels].

        hidden: the last hidden states, where they are known.
        """
        rows = self.config.pooler_rows
        pooled: Any = (
            self.backbone(ids, lengths, token_types, keys, rows=rows).pooled
            if hidden is None
            else self.backbone.pool(hidden, lengths, None)
        )
        given, usual = self.classifier_dropout, self.config.classifier_dropout
        pooled = layers.dropout(pooled, keys, OUTPUT_SITE, usual if given is None else given)
        logits = self.classifier(pooled)
        return logits.astype(statistics_dtype(logits.dtype))

    example_inputs = staticmethod(example_texts)


def log_odds(logits: Array) -> Array:
    """The score for "relevant" in a cross-encoder's logits [B, 1 or 2]: [B].

    The logistic function makes a probability of it; with two labels it is their softmax's.
    """
    return logits[:, 0] if logits.shape[-1] == 1 else logits[:, 1] - logits[:, 0]
