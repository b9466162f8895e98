"""Stages as JSON and back: a machine without gin builds the stages that gin described here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from qac_jax.errors import UserError, shown


_CLASS, _TUPLE, _DICT, _SET = "@class", "@tuple", "@dict", "@set"
_OURS = "qac_jax."
# Fields by which Linen keeps its own books.
_BOOKKEEPING = ("parent", "name")


def to_json(value: Any) -> Any:
    """Dataclasses of ours, Linen modules, containers and plain values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        if not cls.__module__.startswith(_OURS):
            raise UserError(
                f"{cls.__module__}.{cls.__qualname__} is not a class of qac_jax, so a bundle "
                "cannot take it along; run this grid with `qac run`"
            )
        fields = {
            field.name: to_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init and not (field.name in _BOOKKEEPING and _is_module(cls))
        }
        return {_CLASS: f"{cls.__module__}:{cls.__qualname__}", "fields": fields}
    if isinstance(value, tuple):
        return {_TUPLE: [to_json(part) for part in value]}
    if isinstance(value, set | frozenset):
        return {_SET: sorted((to_json(part) for part in value), key=repr)}
    if isinstance(value, list):
        return [to_json(part) for part in value]
    if isinstance(value, Mapping):
        return {_DICT: [[to_json(key), to_json(part)] for key, part in value.items()]}
    raise UserError(
        f"{shown(value)} ({type(value).__name__}) cannot be written into a bundle; expected "
        "numbers, texts, lists, mappings and settings of qac_jax"
    )


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, list):
        return [from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(from_json(part) for part in value[_TUPLE])
    if _SET in value:
        return frozenset(from_json(part) for part in value[_SET])
    if _DICT in value:
        return {from_json(key): from_json(part) for key, part in value[_DICT]}
    module, _, name = value[_CLASS].partition(":")
    cls = getattr(importlib.import_module(module), name) if module.startswith(_OURS) else None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise UserError(f"the bundle names {value[_CLASS]}; expected a class of settings of ours")
    return cls(**{name: from_json(part) for name, part in value["fields"].items()})


def _is_module(cls: type) -> bool:
    return hasattr(cls, "apply") and hasattr(cls, "init")
