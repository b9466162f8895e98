"""Filters of passages by their metadata, as conditions of SQL.

    {"lang": "en", "year": (">=", 2020)}            # both must hold
    {"lang": ["en", "de"], "year": {">=": 2000, "<": 2010}, "draft": None}

A value: the field equals it (or has it among its values). A list: any of these. A tuple (in
Python) or a mapping (in JSON too): comparisons. None: the record does not have the field.

A field may be missing, of several types or have several values (a list): each value is a line
(field, type, value, row) of a table.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from qac_jax.errors import UserError, nearest, shown


# What is not metadata.
OWN = ("_id", "title", "text")
# Types: values of another type do not fit.
_KINDS: dict[str, Any] = {"text": str, "truth": bool, "number": (int, float)}
# Longer texts are no values to filter by.
_LONGEST = 1024
_HALF = re.compile("[\ud800-\udfff]")
_COMPARISONS = {"==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# A text that is a number: tables of files have no others.
NUMERAL = (
    "kind = 'text' AND value GLOB '[-0-9]*' AND value GLOB '*[0-9]' "
    "AND substr(value, 2) NOT GLOB '*[^0-9.]*' AND value NOT GLOB '*.*.*'"
)
OPERATORS = (*_COMPARISONS, "!=", "in", "not in", "exists")

Where = Mapping[str, Any]
Value = str | bool | int | float


def values(record: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """(field, value) of everything that can be filtered by; of mappings, "field.key"."""
    for name, value in record.items():
        if name in OWN:
            continue
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, part in inner:
            field = f"{name}.{key}" if key else name
            for single in part if isinstance(part, list | tuple) else [part]:
                if _storable(single) and len(str(single)) <= _LONGEST:
                    yield field, single


def _storable(value: Any) -> bool:
    """SQLite takes no halves of characters, and numbers as 64-bit floats, NaN excepted."""
    if isinstance(value, str):
        return not _HALF.search(value)
    return isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max


def stored(value: Value) -> tuple[str, Value]:
    """The type of a value and what is stored of it."""
    kind = next(name for name, types in _KINDS.items() if isinstance(value, types))
    return kind, float(value) if kind == "number" else value


class Condition(NamedTuple):
    """Passages that fit any of some queries of the table of fields, or with `others` the rest."""

    field: str
    queries: tuple[tuple[str, tuple[Value, ...]], ...]
    others: bool
    optional: bool = False  # whether the field may be one that no passage has


def parsed(where: Where | None) -> tuple[Condition, ...]:
    """The conditions of a filter; UserError where it is not one."""
    if where is not None and not isinstance(where, Mapping):
        raise UserError(
            f"where={shown(where)} is not a filter; give fields with values, such as "
            '{"lang": "en"}'
        )
    return tuple(
        _condition(str(field), *comparison)
        for field, wanted in (where or {}).items()
        for comparison in _comparisons(wanted)
    )


def _comparisons(wanted: Any) -> list[Any]:
    """(operator, value) of each comparison of a field."""
    if wanted is None:
        return [("exists", False)]
    if isinstance(wanted, Mapping):
        return list(wanted.items())
    if isinstance(wanted, tuple) and len(wanted) == 2:
        return [wanted]
    return [("in" if isinstance(wanted, list) else "==", wanted)]


def _condition(field: str, operator: Any, value: Any) -> Condition:
    if operator not in OPERATORS:
        raise UserError(
            f"where: {shown(field)} {shown(operator)}; {nearest(str(operator), OPERATORS)}"
        )
    several: list[Any] = [value]
    if operator == "exists":
        several = []
    elif operator in ("in", "not in"):
        several = list(value) if isinstance(value, list | tuple) else [None]
    if not all(map(_storable, (field, *several))):
        raise UserError(
            f"where: {shown(field)} {operator} {shown(value)}; expected a text, a finite number, "
            "true or false, and with `in` and `not in` a list of these"
        )
    if operator == "exists":
        return Condition(field, (("field = ?", (field,)),), not value, True)
    compared = f"{_COMPARISONS.get(operator, '=')} ?"
    query = f"field = ? AND kind = ? AND value {compared}"
    numeral = f"field = ? AND ? = 'number' AND {NUMERAL} AND CAST(value AS REAL) {compared}"
    each = [(field, *stored(one)) for one in several]
    queries = [(query, one) for one in each]
    queries += [(numeral, one) for one in each if one[1] == "number"]
    # A record without the field is none of the values, too.
    return Condition(field, tuple(queries), operator in ("!=", "not in"))
