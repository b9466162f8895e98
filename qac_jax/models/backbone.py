"""The interface of every network, so that the rest of the package names no architecture.

An `Architecture` is the frozen configuration of one kind of network. Beside its own fields it knows
the keys of Hugging Face's config.json and the names of the tensors in a weights file. `@register`
makes it known to whatever loads or stores models. Sequence-to-sequence models inherit from it
directly, encoders through `BackboneConfig`; a new one is one file of this room and a gin file with
its sizes (docs/extending.md).
"""

from __future__ import annotations

import abc
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import flax.linen as nn
import jax.numpy as jnp

from qac_jax import extras, fields
from qac_jax.errors import UserError
from qac_jax.models.heads import MlmHead
from qac_jax.models.layers import Array, Dense, Runtime, activation
from qac_jax.models.packing import platform


class Slot(NamedTuple):
    """A parameter in a file: a whole tensor, or one of three equal parts of its last axis."""

    name: str
    transposed: bool = False
    part: int | None = None


# A parameter's path ("layers/0/mlp/up/kernel") -> its tensor. Layers are a loop, numbered from 0.
Table = dict[str, Slot]


def under(path: str, table: Table) -> Table:
    """The table of a module that is a submodule `path` of another one."""
    return {f"{path}/{inner}": slot for inner, slot in table.items()}


def dense(path: str, name: str, bias: bool = True) -> Table:
    """torch's Linear, whose weight is stored as [out, in]."""
    table = {f"{path}/kernel": Slot(f"{name}.weight", transposed=True)}
    return table | {f"{path}/bias": Slot(f"{name}.bias")} if bias else table


def norm(path: str, name: str, bias: bool = True) -> Table:
    """A LayerNorm with scale and, mostly, bias."""
    table = {f"{path}/scale": Slot(f"{name}.weight")}
    return table | {f"{path}/bias": Slot(f"{name}.bias")} if bias else table


def named(names: Mapping[str, str], **prefixes: str) -> Table:
    """A table from the names of parts.

    A part whose path ends in "norm" is a norm, one that ends in "embedding", "scale" or "bias" a
    tensor by itself, every other one a dense layer. Names have placeholders for `prefixes`.
    """
    table: Table = {}
    for path, name in names.items():
        tensor, last = name.format(**prefixes), path.rsplit("/", 1)[-1]
        if last in ("embedding", "scale", "bias"):
            table[path] = Slot(tensor)
        else:
            table |= (norm if last.endswith("norm") else dense)(path, tensor)
    return table


_SIZES = (
    "vocab_size hidden_size num_layers num_heads intermediate_size max_positions d_model d_kv d_ff"
).split()
_LARGEST = 1 << 28  # that any number can be
_DEEPEST = 1 << 12


def check_sizes(
    cls: type, values: Mapping[str, Any], file: str, keys: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises UserError for values of a configuration's fields that are of another type, or not a
    size of a model; keys: their names in the file."""
    hints = typing.get_type_hints(cls)
    for ours, value in values.items():
        name = f"{file}{keys.get(ours, ours)}"
        fields.check_value(value, hints.get(ours, Any), name)
        most = _DEEPEST if "layers" in ours else _LARGEST
        least = 1 if ours in _SIZES else -_LARGEST if ours.endswith("_id") else 0
        if isinstance(value, int) and not least <= value <= most:
            raise UserError(
                f"{name} = {value} is not a size of a model; expected {least:,} to {most:,}"
            )


class Architecture(abc.ABC):
    """The common part of the configurations of all networks that have a Hugging Face folder.

    They are frozen dataclasses. In names of tensors "{encoder}" and "{model}" stand for what the
    names of the encoder, and those of a larger model around it, begin with in a file.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int

    # What people call it: "BERT".
    display_name: ClassVar[str]
    # `model_type` in config.json; the first one is what we write.
    model_types: ClassVar[tuple[str, ...]]
    # Our field -> the key in config.json, where it has another name ("": it has none). What a file
    # leaves out has the default of the field, which must be that of transformers.
    hf_fields: ClassVar[dict[str, str]] = {}
    # The tensor of the word embeddings, without the prefix of the encoder.
    hf_words: ClassVar[str]
    # What the names of the encoder's tensors may begin with inside of a larger model ("bert.");
    # the first one is what we write. Empty: names never have a prefix.
    hf_bases: ClassVar[tuple[str, ...]] = ()
    # Part -> tensor (see `named`) of what is not in a layer. Parts beside the embeddings are those
    # that a model may have or not.
    hf_names: ClassVar[dict[str, str]] = {}
    # Tensors that files may hold though they repeat others -> those others.
    hf_tied: ClassVar[dict[str, str]] = {}
    # Patterns of tensors in known files that have no parameter here; ignored, with a log line.
    hf_ignored: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        own: Any = self  # its subclasses are dataclasses
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(own)}
        check_sizes(type(self), values, f"{type(self).__name__}.")

    @property
    def hf_base(self) -> str:
        """The prefix of the encoder's names when we write it inside of a larger model."""
        return next(iter(self.hf_bases), "")

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @abc.abstractmethod
    def build(self, runtime: Runtime) -> nn.Module:
        """The network; a module with the fields config and runtime."""

    @abc.abstractmethod
    def table(self, encoder: str = "", model: str = "") -> Table:
        """The tensor of every parameter; encoder, model: what names begin with."""

    @classmethod
    def hf_parts(cls) -> dict[str, tuple[str, ...]]:
        """Part that a model may have or not -> what the names of its tensors begin with."""
        parts: dict[str, tuple[str, ...]] = {}
        for path, name in cls.hf_names.items():
            part, first = path.split("/")[0], name.split(".")[0]
            if part != "embeddings":
                parts[part] = (*parts.get(part, ()), f"{first}.")
        return parts

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        """Whether a config.json is one of this architecture."""
        return raw.get("model_type") in cls.model_types

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        """The configuration in a config.json; parts: which of `hf_parts` the model has."""
        return cls(**parts, **cls.taken(raw))

    @classmethod
    def hf_keys(cls) -> dict[str, str]:
        """Our field -> the key in config.json."""
        own = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return {name: key for name in own if (key := cls.hf_fields.get(name, name))}

    @classmethod
    def taken(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that config.json says; those of a wrong type are refused."""
        keys = cls.hf_keys()
        taken = {ours: raw[key] for ours, key in keys.items() if raw.get(key) is not None}
        check_sizes(cls, taken, "config.json: ", keys)
        return taken

    @classmethod
    def hf_has(cls, part: str, raw: Mapping[str, Any], tensors: set[str], table: Table) -> bool:
        """Whether a folder's model has this one of `hf_parts`.

        tensors: the names in its weights; table: that of a model with all parts.
        """
        return any(table[path].name in tensors for path in table if path.split("/")[0] == part)

    def to_hf(self) -> dict[str, Any]:
        raw = {key: getattr(self, ours) for ours, key in self.hf_keys().items()}
        return {**raw, "model_type": self.model_types[0], "dtype": "float32"}

    def hf_files(self) -> Mapping[str, Mapping[str, Any]]:
        """Further JSON files of a model folder, by name."""
        return {}


Kind = TypeVar("Kind", bound=Architecture)
_REGISTERED: dict[str, type[Architecture]] = {}


def register(cls: type[Kind]) -> type[Kind]:
    """Makes an architecture known, under its `model_types` and under its class's name."""
    _REGISTERED[cls.__name__] = cls
    return cls


def registered() -> dict[str, type[Architecture]]:
    """All architectures by the names of their classes: the files of this room are imported here,
    so that a new one needs no mention anywhere."""
    extras.modules(__package__ or "")
    return dict(_REGISTERED)


def model_types(base: type[Architecture]) -> list[str]:
    """Every `model_type` that is read."""
    classes = [cls for cls in registered().values() if issubclass(cls, base)]
    return sorted({kind for cls in classes for kind in cls.model_types})


def reading(raw: Mapping[str, Any], base: type[Kind]) -> type[Kind] | None:
    """The architecture of a config.json among those that are a `base`; None: there is none."""
    matches = (cls for cls in registered().values() if issubclass(cls, base) and cls.reads(raw))
    return next(matches, None)


def of_module(module: object) -> Architecture | None:
    """The configuration of a network that is nothing but an architecture's; None: it is more."""
    config = getattr(module, "config", None)
    if isinstance(config, Architecture) and type(module) is type(config.build(Runtime())):
        return config
    return None


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

    hf_fields: ClassVar[dict[str, str]] = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_act",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "pad_id": "pad_token_id",
        **dict.fromkeys(PARTS, ""),
    }
    hf_words: ClassVar = "embeddings.word_embeddings.weight"
    # What stands before a layer's number, and the names in a layer.
    hf_layers: ClassVar[str] = "{encoder}encoder.layer."
    hf_layer: ClassVar[dict[str, str]] = {}
    # What the names of transformers' classes begin with ("Bert" of BertModel; "": as ours do).
    hf_class: ClassVar[str] = ""
    # What a sequence classifier has in addition or under other names.
    hf_classifier: ClassVar[dict[str, str]] = {"classifier": "{model}classifier"}
    # The dropout before a sequence classifier's output: its key, and its rate where nothing else is
    # said (None: that of the layers).
    hf_classifier_dropout: ClassVar[str] = "classifier_dropout"
    classifier_rate: ClassVar[float | None] = None
    # The row of the position embeddings that a text's first token has.
    first_position: ClassVar[int] = 0
    # Called with (config, runtime).
    embedding_class: ClassVar[type[nn.Module]]
    # Of the MLM head (None: that of the layers), and of the pooler.
    mlm_activation: ClassVar[str | None] = None
    pooler_activation: ClassVar[str] = "tanh"
    # Whether `embeddings` leave positions to the layers (relative, rotary). Decoders that read
    # embeddings know no order then, unless their layers do.
    position_free: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} cannot be cut into num_heads={self.num_heads} "
                "equal heads; expected a multiple"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name}={getattr(self, name)} is not in [0, 1)")
        activation(self.activation)

    def build(self, runtime: Runtime) -> Backbone:
        return Backbone(self, runtime)

    @abc.abstractmethod
    def stack(self, runtime: Runtime, count: int) -> nn.Module:
        """`count` of its layers, one after another: the encoder's own, or a head's on top."""

    def stack_table(self, count: int, prefix: str) -> Table:
        """The tensors of `stack`, whose names begin with `prefix` and the layer's number."""
        return {
            f"{i}/{path}": slot._replace(name=f"{prefix}{i}.{slot.name}")
            for i in range(count)
            for path, slot in named(self.hf_layer).items()
        }

    def table(self, encoder: str = "", model: str = "") -> Table:
        absent = tuple(part for part in PARTS if not getattr(self, part))
        names = {p: name for p, name in self.hf_names.items() if p.split("/")[0] not in absent}
        prefix = self.hf_layers.format(encoder=encoder, model=model)
        layers = under("layers", self.stack_table(self.num_layers, prefix))
        return layers | named(names, encoder=encoder, model=model)

    def classifier_table(self, encoder: str = "", model: str = "") -> Table:
        """The tensors of a sequence classifier: the backbone with its pooler, and the output."""
        table = under("backbone", self.with_parts("pooler").table(encoder, model))
        return table | named(self.hf_classifier, encoder=encoder, model=model)

    def words_of(self, params: Mapping[str, Any]) -> Any:
        """The table of word embeddings in a tree of parameters."""
        return params["embeddings"]["word"]["embedding"]

    def with_words(self, params: Mapping[str, Any], table: Any) -> dict[str, Any]:
        embeddings = {**params["embeddings"], "word": {"embedding": table}}
        return {**params, "embeddings": embeddings}

    @property
    def max_length(self) -> int:
        """Tokens of the longest text that fits."""
        return self.max_positions - self.first_position

    @property
    def token_types(self) -> int:
        """How many token types there are; with fewer than 2 they are ignored."""
        return 0

    @property
    def classifier_dropout(self) -> float:
        """Before a sequence classifier's output, where nothing else is said."""
        rate = self.classifier_rate
        return self.hidden_dropout if rate is None else rate

    @property
    def pooler_rows(self) -> int | None:
        """How many of the first positions `Backbone.pool` reads (None: all)."""
        return 1

    def with_parts(self, *parts: str) -> Self:
        """The same with exactly these of the optional parts."""
        chosen: dict[str, Any] = {name: name in parts for name in PARTS}
        return dataclasses.replace(self, **chosen)

    def to_hf(self, labels: int | None = None) -> dict[str, Any]:
        """config.json; with labels, of a sequence classifier."""
        raw = super().to_hf()
        kind = "ForMaskedLM" if self.mlm_head else "Model"
        if labels is not None:
            kind = "ForSequenceClassification"
            raw["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
            raw["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
            if self.classifier_rate is not None:
                raw[self.hf_classifier_dropout] = self.classifier_rate
        name = self.hf_class or type(self).__name__.removesuffix("Config")
        return {**raw, "architectures": [name + kind]}


class BackboneOutput(NamedTuple):
    last: Array  # [B, L, hidden]; [B, rows, hidden] where only the first rows were asked for
    hidden_states: dict[int, Array]  # those asked for, under the numbers asked with
    pooled: Array | None  # [B, hidden], where the configuration has a pooler

    @property
    def cls(self) -> Array:
        """The last layer's vector of the first token, un-pooled: [B, hidden]."""
        return self.last[:, 0]


def example_texts() -> tuple[Array, Array]:
    return jnp.zeros((1, 2), jnp.int32), jnp.ones((1,), jnp.int32)


class Backbone(nn.Module):
    """ids [B, L] right-padded, lengths [B] (None: no padding) -> BackboneOutput."""

    config: BackboneConfig
    runtime: Runtime = Runtime()

    def setup(self) -> None:
        config, runtime = self.config, self.runtime
        self.embeddings = config.embedding_class(config, runtime)
        self.layers = config.stack(runtime, config.num_layers)
        if config.pooler:
            init = nn.initializers.normal(config.initializer_range)
            width = config.hidden_size
            self.pooler = Dense(width, ("embed", None), runtime.compute_dtype, init)
        if config.mlm_head:
            self.mlm_head = MlmHead(config, runtime, config.mlm_activation)

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
        wanted = {number: number + (count + 1) * (number < 0) for number in hidden_states}
        if odd := [number for number, state in wanted.items() if not 0 <= state <= count]:
            raise UserError(
                f"hidden state {odd[0]} does not exist; this {config.display_name} of {count} "
                f"layers has 0 to {count}"
            )
        if lengths is not None and self.runtime.packed and platform() == "gpu":
            # Padding outside of the word table: its vectors are never read, but their gradients,
            # which are 0, would be added to the padding's row one by one, half of all additions.
            within = jnp.arange(ids.shape[1]) < lengths[:, None]
            ids = jnp.where(within, ids, config.vocab_size)
        x = self.embed(ids, token_types, keys)
        x, states = self.layers(x, lengths, keys, wanted=tuple(wanted.values()), rows=rows)
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

    def pool(self, x: Array, lengths: Array | None, keys: Array | None) -> Array:
        """The pooled vectors [B, hidden] of last hidden states (its first `pooler_rows`)."""
        return activation(self.config.pooler_activation)(self.pooler(x[:, 0]))

    def mlm_logits(
        self, hidden: Array, positions: Array | None = None, padded: bool = False
    ) -> Array:
        """Word logits of hidden [B, L, D], or only at positions [B, M] (the masked ones).

        padded=True leaves the vocabulary padded to a multiple of 128 (see `tied_logits`).
        """
        if positions is not None:
            hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1, mode="clip")
        return self.mlm_head(hidden, self.word_table(), padded)

    def word_table(self) -> Array:
        return self.embeddings.word.table

    def position_vectors(self, length: int) -> Array:
        """The embeddings of the first `length` positions: [length, D]."""
        config = self.config
        other = "so use an objective that reads no position embeddings, such as cotmae.CotMae"
        if config.position_free:
            raise UserError(f"{config.display_name} has no position embeddings, {other}")
        if config.embedding_size != config.hidden_size:
            raise UserError(
                f"the position embeddings of this {config.display_name} are narrower than its "
                f"layers ({config.embedding_size} and {config.hidden_size}), {other}"
            )
        start = config.first_position
        return self.embeddings.position.table[start : start + length]

    example_inputs = staticmethod(example_texts)  # arguments that initialise it


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
