"""Settings as fields of frozen dataclasses: how they are declared, checked, flattened and hashed.

Gin checks no types and dataclasses neither, so a wrong binding would surface hours later as a
traceback; `check` turns it into one sentence before anything runs.
"""

import dataclasses
import hashlib
import json
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError, nearest, shown


REQUIRED = "<required>"

_WITHIN: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "more than": operator.gt,
    "at most": operator.le,
    "less than": operator.lt,
}


def option(
    default: Any = REQUIRED,
    help: str = "",
    *,
    choices: Collection[Any] | Callable[[], Sequence[Any]] = (),
    shown: Sequence[str] | Mapping[str, Sequence[str]] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    affects_result: bool = True,
) -> Any:
    """A setting. One with `affects_result=False` (workers, log intervals) is not in the key.

    choices: all valid values, or those of its items where it is a tuple; a function where they cost
    an import. shown: what `--help` lists where values have forms ("ndcg@K") or only gin can build
    them (gin's names, each with its choices). at_least, above, at_most, below: bounds of a number.
    """
    bounds = {"at least": at_least, "more than": above, "at most": at_most, "less than": below}
    metadata = {
        "help": help,
        "choices": choices if callable(choices) else tuple(choices),
        "shown": shown,
        "bounds": {words: bound for words, bound in bounds.items() if bound is not None},
        "affects_result": affects_result,
    }
    if isinstance(default, list | dict):
        raise TypeError(f"default {default!r} is mutable; use a tuple or None")
    return dataclasses.field(default=default, metadata=metadata)


class Checked:
    """A dataclass that refuses values of its options out of their bounds or choices when made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            _check_option(field, getattr(self, field.name), f"{type(self).__name__}.{field.name}")


def part(cls: type) -> Any:
    """Settings that belong together, a frozen dataclass of their own: one line in the stage.

    The command line shows their fields as flags of the stage (`flat`), and gin binds them once
    for all stages (`Inference.precision = "float32"`) or, in a scope, for one of them.
    """
    return dataclasses.field(default_factory=cls, metadata={"part": cls})


Function = typing.TypeVar("Function", bound=Callable[..., Any])


def for_gin(function: Function) -> Function:
    """Marks a function that gin files may call: it only turns values into a value."""
    function.__for_gin__ = True  # type: ignore[attr-defined]
    return function


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting of a class or of one of its parts."""

    owner: type  # the dataclass that declares it
    part: str  # the field that holds the owner; "" where it is the class itself
    field: dataclasses.Field[Any]
    hint: Any


def flat(cls: type) -> Mapping[str, Leaf]:
    """Every setting of a class and of its parts by its name, which must be unique among them."""
    leaves: dict[str, Leaf] = {}
    for owner, holder in ((cls, ""), *((p, name) for name, p in parts(cls).items())):
        hints = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if "part" in field.metadata or not field.init:
                continue
            if field.name in leaves or field.name in parts(cls):
                raise TypeError(f"{cls.__name__} has two settings named {field.name}")
            leaves[field.name] = Leaf(owner, holder, field, hints[field.name])
    return leaves


def parts(cls: type) -> dict[str, type]:
    """Field name -> class of the parts of a dataclass."""
    return {f.name: f.metadata["part"] for f in dataclasses.fields(cls) if "part" in f.metadata}


def make(cls: type, settings: Mapping[str, Any]) -> Any:
    """An instance from settings by their flat names; whole parts may be passed too."""
    leaves = flat(cls)
    own: dict[str, Any] = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in leaves and name not in parts(cls):
            raise UserError(f"{cls.__name__} has no setting {name!r}; {nearest(name, leaves)}")
        part = leaves[name].part if name in leaves else ""
        (of_parts.setdefault(part, {}) if part else own)[name] = value
    for name, changes in of_parts.items():
        start = own.get(name) or parts(cls)[name]()
        own[name] = dataclasses.replace(start, **changes)
    return cls(**own)


def values(instance: Any) -> dict[str, Any]:
    return {
        name: getattr(getattr(instance, leaf.part) if leaf.part else instance, name)
        for name, leaf in flat(type(instance)).items()
    }


def is_input(field: dataclasses.Field[Any]) -> bool:
    return "kinds" in field.metadata


def choices(field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """The valid values of a setting; none where it is open."""
    valid = field.metadata.get("choices", ())
    return tuple(valid() if callable(valid) else valid)


def check(instance: Any, name: str = "") -> None:
    """Raises UserError where a field is unset or of another type than it declares."""
    if not dataclasses.is_dataclass(instance) or isinstance(instance, type):
        return
    name = name or type(instance).__name__
    hints = typing.get_type_hints(type(instance))
    for field in (field for field in dataclasses.fields(instance) if field.init):
        value = getattr(instance, field.name, None)
        label = f"{name}.{field.name}"
        # A bare object() is gin's REQUIRED sentinel, which rooms must not import.
        if value == REQUIRED and isinstance(value, str) or type(value) is object:
            passed = f"pass --{field.name} or " if converter(hints.get(field.name)) else ""
            about = f" ({field.metadata['help']})" if field.metadata.get("help") else ""
            raise UserError(f"{label} is not set{about}; {passed}bind {label} in gin")
        if _is_bookkeeping(field, instance):
            continue
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            raise UserError(f"{label} is the class {value.__qualname__} itself; give it brackets")
        check_value(value, hints.get(field.name, Any), label, finite=False)
        _check_option(field, value, label)
        for child_label, child in _children(value, label):
            check(child, child_label)


def _check_option(field: dataclasses.Field[Any], value: Any, label: str) -> None:
    """Raises UserError for a value that is not one of the choices or is out of its bounds."""
    for words, bound in field.metadata.get("bounds", {}).items():
        if isinstance(value, int | float) and not _WITHIN[words](value, bound):
            every = " and ".join(f"{w} {b:g}" for w, b in field.metadata["bounds"].items())
            raise UserError(f"{label} = {value}; expected {every}")
    if value == REQUIRED or not (valid := choices(field)):
        return
    for item in value if isinstance(value, list | tuple) else (value,):
        if item not in valid:
            close = nearest(str(item), map(str, valid))
            hint = f"; {close}" if close.startswith("did you") else ""  # no second list
            raise UserError(
                f"{label} = {shown(item)} is not one of {', '.join(map(str, valid))}{hint}"
            )


def check_value(value: Any, hint: Any, label: str, *, finite: bool = True) -> None:
    """Raises UserError for a value of another type, or a number that is not finite."""
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{label} = {value}; expected a finite number")
    if not fits(value, hint):
        kind = type(value).__name__
        article = "an" if kind[:1].lower() in "aeiou" else "a"
        raise UserError(
            f"{label} = {shown(value)} is {article} {kind}; expected {_type_name(hint)}"
        )


def describe(value: Any) -> Any:
    """A JSON form of a setting that is the same in every process (no ids, no addresses)."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # By name alone, so that a class may move to another module and keys stay.
        described: dict[str, Any] = {"type": type(value).__qualname__}
        for field in dataclasses.fields(value):
            counts = field.init and field.metadata.get("affects_result", True)
            if counts and not _is_bookkeeping(field, value):
                described[field.name] = describe(getattr(value, field.name))
        return described
    if isinstance(value, Mapping):
        return {str(k): describe(value[k]) for k in sorted(value, key=str)}
    if isinstance(value, set | frozenset):
        return sorted((describe(v) for v in value), key=str)
    if isinstance(value, Sequence):
        return [describe(v) for v in value]
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return {"array": str(value.dtype), "shape": list(value.shape), "sha256": digest}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    raise UserError(
        f"{shown(value)} ({type(value).__name__}) cannot be part of a configuration; expected "
        f"numbers, strings, sequences, mappings, dataclasses, arrays or named functions"
    )


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Names of files may hold bytes that are not UTF-8.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def converter(hint: Any) -> Callable[[str], Any] | None:
    """Converts a flag's text to this type; None for types that only gin can express."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    for kind in (bool, int, float, str):
        if kind in members:
            return kind
    lists = [typing.get_args(m)[0] for m in members if typing.get_origin(m) is tuple]
    inner = converter(lists[0]) if lists else None
    if inner is None:
        return None
    return lambda text: tuple(inner(part.strip()) for part in text.split(",") if part.strip())


def _children(value: Any, label: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{label}[{k!r}]", v) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{label}[{i}]", v) for i, v in enumerate(value)]
    return [(type(value).__name__, value)]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, all that it holds included."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, member) for member in arguments)
    if hint in (int, float):
        numbers = (int, float) if hint is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    if origin in (tuple, list, Sequence):
        # Gin writes lists where Python would write tuples: both are taken.
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and arguments[-1] is not Ellipsis:
            return len(value) == len(arguments) and all(map(fits, value, arguments))
        return all(fits(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            fits(k, arguments[0]) and fits(v, arguments[1]) for k, v in value.items()
        )
    if isinstance(hint, list):
        return isinstance(value, list) and all(fits(item, hint[0]) for item in value)
    if isinstance(hint, dict):  # a record: what it has at least, "?" behind what it may lack
        return isinstance(value, Mapping) and all(
            fits(value[key], part) if (key := name.rstrip("?")) in value else key != name
            for name, part in hint.items()
        )
    if origin is Callable:
        return callable(value)
    plain = origin or (type(None) if hint is None else hint)
    # Any, type variables and protocols are not checked.
    is_class = isinstance(plain, type) and plain is not Any
    return not is_class or getattr(plain, "_is_protocol", False) or isinstance(value, plain)


def _is_bookkeeping(field: dataclasses.Field[Any], instance: Any) -> bool:
    """Whether it is Linen's own, not a setting of a module; Flax is not imported for that."""
    of_module = hasattr(type(instance), "apply") and hasattr(type(instance), "init")
    return of_module and field.name in ("parent", "name")


def _type_name(hint: Any) -> str:
    if isinstance(hint, dict | list):
        return "a record" if isinstance(hint, dict) else "a list of records"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_type_name, typing.get_args(hint)))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
