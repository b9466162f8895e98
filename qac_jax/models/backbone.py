"""What every encoder gives, so that the rest of the package names no architecture.

A backbone is one file of this room with two classes; beside it are a gin file and a test.

`XConfig(BackboneConfig)`, a frozen dataclass decorated with `@register`:

* its fields, with the defaults of transformers' configuration class (what config.json leaves out);
* as class variables how Hugging Face's files spell it: display_name, model_types, hf_class,
  hf_fields, hf_words, hf_bases, hf_parts, word_embedding (see architecture.py),
  hf_classifier_dropout;
* `build(runtime)` (the network), `stack(runtime, count)` (count layers, called as
  stack(x, lengths, keys, wanted=(), rows=None) -> (x, states), also for heads on top);
* `table(encoder, model)` and `stack_table(count, prefix)`: the tensor of every parameter;
* of the layers, that they may be computed without padding (`packs`, see packing.py);
* where they differ from a BERT's: `max_length`, `token_types`, `embedding_size`, `pooler_rows`,
  `classifier_dropout`, `classifier_table`, `from_hf`, `to_hf`, `hf_copies`, `position_free`.

`X(Backbone)`, a Linen module with the fields config and runtime. It names `embedding_class` and
`mlm_activation`, or has a `setup` of its own that makes

* `embeddings`: called as embeddings(ids, token_types, keys) -> [B, L, hidden];
* `layers`: config.stack(runtime, config.num_layers);
* `pooler` where config.pooler, and `mlm_head` where config.mlm_head (their parameters are the
  subtrees of these names, and all of what these parts have of their own);

and which overrides, where it differs from a BERT: `embed`, `encode`, `pool`, `predict`,
`word_table`, `position_vectors`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax.numpy as jnp

from qac_jax import fields
from qac_jax.errors import UserError
from qac_jax.models.architecture import Architecture
from qac_jax.models.layers import Array, Dense, Runtime, activation
from qac_jax.models.mlm_head import MlmHead
from qac_jax.models.platform import platform
from qac_jax.models.tensor_names import Table, dense, under


# Optional parts: a pooled vector (what sequence classification reads), word predictions.
PARTS = ("pooler", "mlm_head")


@dataclasses.dataclass(frozen=True)
class BackboneConfig(Architecture):
    """An encoder's architecture: what its parameters are and what they compute."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    activation: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int = 0
    pooler: bool = False
    mlm_head: bool = False

    hf_fields: ClassVar = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_act",
        "layer_norm_eps": "layer_norm_eps",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "initializer_range": "initializer_range",
        "pad_id": "pad_token_id",
    }
    hf_words: ClassVar = "embeddings.word_embeddings.weight"
    # The key of the dropout before a sequence classifier's output.
    hf_classifier_dropout: ClassVar[str] = "classifier_dropout"
    word_embedding: ClassVar = ("embeddings", "word", "embedding")
    # Whether `embeddings` leave positions to the layers (relative, rotary). Decoders that read
    # embeddings know no order then, unless their layers do.
    position_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} cannot be cut into num_heads={self.num_heads} "
                "equal heads; expected a multiple"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name}={getattr(self, name)} is not in [0, 1)")
        activation(self.activation)

    @abc.abstractmethod
    def build(self, runtime: Runtime) -> Backbone:
        """The network."""

    @abc.abstractmethod
    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        """`count` of its layers, one after another: the encoder's own, or a head's on top."""

    @abc.abstractmethod
    def stack_table(self, count: int, prefix: str) -> Table:
        """The tensors of `stack`, whose names begin with `prefix` and the layer's number."""

    @property
    def embedding_std(self) -> float:
        return self.initializer_range

    @property
    def max_length(self) -> int:
        """Tokens of the longest text that fits."""
        return self.max_positions

    @property
    def token_types(self) -> int:
        """How many token types there are; with fewer than 2 they are ignored."""
        return 0

    @property
    def classifier_dropout(self) -> float:
        """Before a sequence classifier's output, where nothing else is said."""
        return self.hidden_dropout

    @property
    def pooler_rows(self) -> int | None:
        """How many of the first positions `Backbone.pool` reads (None: all)."""
        return 1

    def with_parts(self, *parts: str) -> Self:
        """The same with exactly these of the optional parts."""
        chosen: dict[str, Any] = {name: name in parts for name in PARTS}
        return dataclasses.replace(self, **chosen)

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        """The tensors of a sequence classifier: the backbone with its pooler, and the output."""
        table = under("backbone", self.with_parts("pooler").table(encoder, model))
        return table | dense("classifier", f"{model}classifier")

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        """config.json; with labels, of a sequence classifier."""
        raw = super().to_hf()
        kind = "ForMaskedLM" if self.mlm_head else "Model"
        if labels is not None:
            kind = "ForSequenceClassification"
            raw["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
            raw["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
        return {**raw, "architectures": [self.hf_class + kind]}


class BackboneOutput(NamedTuple):
    """What an encoder gives for a batch."""

    last: Array  # [B, L, hidden]; [B, rows, hidden] where only the first rows were asked for
    hidden_states: dict[int, Array]  # those asked for, under the numbers asked with
    pooled: Array | None  # [B, hidden], where the configuration has a pooler

    @property
    def cls(self) -> Array:
        """The last layer's vector of the first token, un-pooled: [B, hidden]."""
        return self.last[:, 0]


def take_positions(hidden: Array, positions: Array) -> Array:
    """hidden [B, L, D] at positions [B, M] -> [B, M, D]."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1, mode="clip")


def example_texts() -> tuple[Array, Array]:
    """Ids and lengths, to initialise what reads texts."""
    return jnp.zeros((1, 2), jnp.int32), jnp.ones((1,), jnp.int32)


class Backbone(nn.Module):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: BackboneConfig
    runtime: Runtime = Runtime()

    # Called with (config, runtime).
    embedding_class: ClassVar[type[nn.Module]]
    # Of the MLM head (None: that of the layers).
    mlm_activation: ClassVar[str | None] = None

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.embeddings = self.embedding_class(config, runtime)
        self.layers = config.stack(runtime, config.num_layers)
        if config.pooler:
            init = nn.initializers.normal(config.initializer_range)
            width = config.hidden_size
            self.pooler = Dense(width, ("embed", None), runtime.compute_dtype, init)
        if config.mlm_head:
            self.mlm_head = MlmHead(config, runtime, self.mlm_activation)

    def __call__(
        self,
        ids: Array,
        lengths: Array | None = None,
        token_types: Array | None = None,
        keys: Array | None = None,
        hidden_states: Sequence[int] = (),
        rows: int | None = None,
    ) -> BackboneOutput:
        """Encodes a batch.

        hidden_states: the numbers of the hidden states to return; 0 is the embeddings' output,
        k that of layer k, negative numbers count from the last. rows: the last layer computes
        only the first `rows` positions (1 where only the CLS vector is used).
        """
        config, count = self.config, self.config.num_layers
        wanted = {number: self._resolve(number) for number in hidden_states}
        if rows is not None and count in wanted.values():
            raise UserError("rows= cuts the last hidden state, which hidden_states asks for whole")
        x = self.embed(self._without_padding(ids, lengths), token_types, keys)
        x, states = self.encode(x, lengths, keys, tuple(wanted.values()), rows)
        if self.is_initializing() and config.mlm_head:
            self.mlm_logits(x[:, :1])
        pooled = self.pool(x, lengths, keys) if config.pooler else None
        return BackboneOutput(x, {n: states[k] for n, k in wanted.items()}, pooled)

    def embed(
        self, ids: Array, token_types: Array | None = None, keys: Array | None = None
    ) -> Array:
        """The embeddings' output, hidden state 0: what decoders that share them read."""
        length, limit = ids.shape[1], self.config.max_length
        if length > limit:
            raise UserError(
                f"texts of {length} tokens do not fit this model, which has {limit} positions; "
                "truncate them"
            )
        types = token_types if self.config.token_types > 1 else None
        return self.embeddings(ids, types, keys)

    def _without_padding(self, ids: Array, lengths: Array | None) -> Array:
        """On a GPU: ids whose padding is outside of the word table, where texts are packed.

        The vectors of padding are never read, but their gradients, which are 0, would be added to
        the padding's row of the table one by one: half of all additions.
        """
        if lengths is None or not self.runtime.packed or platform() != "gpu":
            return ids
        within = jnp.arange(ids.shape[1]) < lengths[:, None]
        return jnp.where(within, ids, self.config.vocab_size)

    def encode(
        self,
        x: Array,
        lengths: Array | None,
        keys: Array | None,
        wanted: Sequence[int] = (),
        rows: int | None = None,
    ) -> tuple[Array, dict[int, Array]]:
        """The last hidden state of embedded texts, and those of the wanted numbers."""
        return self.layers(x, lengths, keys, wanted=wanted, rows=rows)

    def pool(self, x: Array, lengths: Array | None, keys: Array | None) -> Array:
        """The pooled vectors [B, hidden] of last hidden states (its first `pooler_rows`)."""
        del lengths, keys
        return jnp.tanh(self.pooler(x[:, 0]))

    def mlm_logits(
        self, hidden: Array, positions: Array | None = None, padded: bool = False
    ) -> Array:
        """Word logits of hidden [B, L, D], or only at positions [B, M] (the masked ones).

        padded=True leaves the vocabulary padded to a multiple of 128 (see `tied_logits`).
        """
        if not self.config.mlm_head:
            raise UserError(
                f"this {self.config.display_name} has no MLM head; make it with mlm_head=True"
            )
        if positions is not None:
            hidden = take_positions(hidden, positions)
        return self.predict(hidden, padded)

    def predict(self, hidden: Array, padded: bool) -> Array:
        """The MLM head's logits."""
        return self.mlm_head(hidden, self.word_table(), padded)

    def word_table(self) -> Array:
        """The table of word embeddings [V, D]."""
        return self.embeddings.word.table

    def position_vectors(self, length: int) -> Array:
        """What the embeddings add for the first `length` positions: [length, D]."""
        if self.config.position_free:
            raise UserError(
                f"{self.config.display_name} has no position embeddings, which this objective "
                "reads; use one that does not, such as cotmae.CotMae"
            )
        return self.embeddings.position.table[:length]

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, ...]:
        """Arguments that initialise it."""
        return example_texts()

    @nn.nowrap
    def _resolve(self, number: int) -> int:
        count = self.config.num_layers
        state = number + count + 1 if number < 0 else number
        if not 0 <= state <= count:
            raise UserError(
                f"hidden state {number} does not exist; this {self.config.display_name} of {count} "
                f"layers has 0 to {count}"
            )
        return state


# What gin files of models bind and those of objectives refer to, so that these name no
# architecture; a scope may choose another one (teacher/backbone.chosen.config = …).


@fields.for_gin
def chosen(config: BackboneConfig) -> BackboneConfig:
    """The configuration that a gin file of gin_configs/models has chosen."""
    return config


@fields.for_gin
def network(config: BackboneConfig, runtime: Runtime) -> Backbone:
    """The network of a configuration."""
    return config.build(runtime)
