"""What a kind of example declares: one file each in `data/kinds/`.

A pair function is pure: (record, rng, settings) -> example. A record is a mapping from the stored
features' names to arrays: token ids without special tokens, or lists of them. It is read from an
examples artefact (`data/examples.py`), but a plain dict of arrays and lists does as well. `rng` is
numpy's Generator for (seed, epoch, example), so an example is a function of its record and these
three numbers. `form` adds special tokens and truncates; `lengths` are the limits, special tokens
included.

The seqio tasks (`data/tasks.py`) and the loader (`data/loader.py`) wrap these same functions.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any


Record = Mapping[str, Any]
Example = dict[str, Any]
Lengths = Mapping[str, int]
Settings = Mapping[str, Any]

LENGTH = "length"  # the axis that is padded


@dataclasses.dataclass(frozen=True)
class Feature:
    """One array of a batch: its axes after the batch axis, padded to `length`."""

    axes: tuple[str | int, ...] = (LENGTH,)
    length: int = 0  # the default limit
    dtype: str = "int32"
    like: str = ""  # another feature with the same padding, so no `_length` of its own

    @property
    def padded(self) -> bool:
        return LENGTH in self.axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of example. `needs` are the record's features; settings are keyword arguments."""

    name: str
    function: Callable[..., Example]
    features: Callable[[Settings], dict[str, Feature]]
    needs: Callable[[Settings], tuple[str, ...]]
    crop: str = "random"
    check: Callable[[Settings], None] = lambda settings: None

    def __reduce__(self) -> tuple[Callable[[str], Kind], tuple[str]]:
        """Travels to worker processes by its name."""
        return by_name, (self.name,)

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings and their default values; `...` marks one that must be given."""
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: ... if p.default is p.empty else p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("form", "lengths")
        }


def by_name(name: str) -> Kind:
    """The kind of this name, for those that were sent to another process."""
    from qac_jax.data.kinds import KINDS

    return KINDS[name]


def two_texts(passage: int, context: int) -> Callable[[Settings], dict[str, Feature]]:
    """The features of a passage and its context, with these limits."""
    features = {"passage": Feature(length=passage), "context": Feature(length=context)}
    return lambda settings: dict(features)
