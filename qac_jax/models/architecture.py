"""Configurations of networks, and how Hugging Face's folders store them.

An `Architecture` is the frozen configuration of one kind of network. Beside its own fields it knows
the keys of Hugging Face's config.json and the names of the tensors in a weights file. `@register`
makes it known to whatever loads or stores models; nothing else names it. Encoders inherit from
`BackboneConfig` (backbone.py), sequence-to-sequence models from `Architecture` itself.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import flax.linen as nn

from qac_jax import fields
from qac_jax.errors import UserError
from qac_jax.models.layers import Runtime
from qac_jax.models.tensor_names import Table


# Fields that are sizes, and the largest that any of them can have.
_SIZES = (
    "vocab_size hidden_size num_layers num_heads intermediate_size max_positions d_model d_kv d_ff"
).split()
_LARGEST = 1 << 28


@dataclasses.dataclass(frozen=True)
class Architecture(abc.ABC):
    """What is common to the configurations of all networks that have a Hugging Face folder."""

    # What people call it: "BERT".
    display_name: ClassVar[str]
    # `model_type` in config.json; the first one is what we write.
    model_types: ClassVar[tuple[str, ...]]
    # What the names of transformers' classes begin with: "Bert" of BertModel.
    hf_class: ClassVar[str]
    # Our field -> the key in config.json. What a file leaves out has the default of the field,
    # which must be that of transformers.
    hf_fields: ClassVar[Mapping[str, str]] = {}
    # The tensor of the word embeddings, without the prefix of the encoder.
    hf_words: ClassVar[str]
    # What the names of the encoder's tensors may begin with inside of a larger model ("bert.");
    # the first one is what we write. Empty: names never have a prefix.
    hf_bases: ClassVar[tuple[str, ...]] = ()
    # Part that a model may have or not -> what the names of its tensors begin with; "{encoder}"
    # and "{model}" stand for the prefixes of the encoder and of the model around it.
    hf_parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Patterns of tensors in known files that have no parameter here; ignored, with a log line.
    hf_ignored: ClassVar[tuple[str, ...]] = ()
    # Where the table of word embeddings is in the tree of parameters.
    word_embedding: ClassVar[tuple[str, ...]]

    @property
    def hf_base(self) -> str:
        """What the encoder's names begin with when we write it inside of a larger model."""
        return next(iter(self.hf_bases), "")

    # Fields, or properties.
    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Rows of the table of word embeddings."""

    @property
    @abc.abstractmethod
    def hidden_size(self) -> int:
        """The width of a hidden state."""

    @property
    def embedding_size(self) -> int:
        """The width of the table of word embeddings."""
        return self.hidden_size

    @property
    @abc.abstractmethod
    def num_layers(self) -> int:
        """Layers of the encoder."""

    @property
    @abc.abstractmethod
    def num_heads(self) -> int:
        """Attention heads of a layer."""

    @abc.abstractmethod
    def build(self, runtime: Runtime) -> nn.Module:
        """The network; a module with the fields config and runtime."""

    @abc.abstractmethod
    def table(self, encoder: str = "", model: str = "") -> Table:
        """The tensor of every parameter; encoder, model: what names begin with (see hf_parts)."""

    @property
    @abc.abstractmethod
    def embedding_std(self) -> float:
        """The standard deviation of new word embeddings."""

    def words_of(self, params: Mapping[str, Any]) -> Any:
        """The table of word embeddings in a tree of parameters."""
        value: Any = params
        for name in self.word_embedding:
            value = value[name]
        return value

    def with_words(self, params: Mapping[str, Any], table: Any) -> dict[str, Any]:
        """The tree with another table of word embeddings; what it lacks on the way is added."""

        def changed(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
            if not path:
                return table
            return {**tree, path[0]: changed(tree.get(path[0], {}), path[1:])}

        return changed(params, self.word_embedding)

    @classmethod
    def reads(cls, raw: Mapping[str, Any]) -> bool:
        """Whether a config.json is one of this architecture.

        Override it where two share a model_type (by raw["architectures"]).
        """
        return raw.get("model_type") in cls.model_types

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], **parts: bool) -> Self:
        """The configuration in a config.json; parts: which of `hf_parts` the model has."""
        return cls(**parts, **cls.taken(raw))

    @classmethod
    def taken(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that config.json says; those of a wrong type are refused."""
        hints = typing.get_type_hints(cls)
        taken = {
            ours: raw[theirs]
            for ours, theirs in cls.hf_fields.items()
            if raw.get(theirs) is not None
        }
        for ours, value in taken.items():
            name = cls.hf_fields[ours]
            fields.check_value(value, hints.get(ours, Any), f"config.json: {name}")
            if ours in _SIZES and not 0 < value <= _LARGEST:
                raise UserError(f"config.json: {name} = {value} is not a size of a model")
        return taken

    @classmethod
    def hf_has(cls, part: str, raw: Mapping[str, Any], tensors: set[str], table: Table) -> bool:
        """Whether a folder's model has this one of `hf_parts`.

        tensors: the names in its weights; table: that of a model with all parts. Override it where
        two parts share tensors.
        """
        del raw
        own = (slot.name for path, slot in table.items() if path.split("/", 1)[0] == part)
        return any(name in tensors for name in own)

    @classmethod
    def hf_copies(cls, encoder: str, model: str) -> Mapping[str, str]:
        """Tensors that files may hold though they repeat others (tied weights) -> those others."""
        del encoder, model
        return {}

    def to_hf(self) -> dict[str, Any]:
        """config.json."""
        raw = {theirs: getattr(self, ours) for ours, theirs in self.hf_fields.items()}
        return {**raw, "model_type": self.model_types[0], "dtype": "float32"}

    def hf_files(self) -> Mapping[str, Mapping[str, Any]]:
        """Further JSON files of a model folder, by name."""
        return {}


Kind = TypeVar("Kind", bound=Architecture)
_REGISTERED: dict[str, type[Architecture]] = {}


def register(cls: type[Kind]) -> type[Kind]:
    """Makes an architecture known, under its `model_types` and under its class's name."""
    known = _REGISTERED.get(cls.__name__)
    if known is not None and known.__module__ != cls.__module__:
        raise ValueError(
            f"{cls.__module__} and {known.__module__} both have an architecture {cls.__name__}; "
            "artefacts store that name, so rename one"
        )
    _REGISTERED[cls.__name__] = cls
    return cls


def registered() -> dict[str, type[Architecture]]:
    """All architectures by the names of their classes: those of this room, and what was imported.

    The files of this room are imported here, so that a new one needs no mention anywhere.
    """
    room = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(room.__path__):
        if not module.ispkg:
            importlib.import_module(f"{__package__}.{module.name}")
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
