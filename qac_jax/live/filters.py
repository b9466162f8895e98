"""Filters: what `where` may say about metadata, and the rows that fit.

    {"lang": "en", "year": (">=", 2020)}            # both must hold
    {"lang": ["en", "de"], "year": {">=": 2000, "<": 2010}, "draft": None}

A value: the field equals it (or has it among its values). A list: any of these. A tuple (in
Python) or a mapping (in JSON too): comparisons. None: the record does not have the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.live.metadata import Metadata, kind_of


Where = Mapping[str, Any]

# Operators and Arrow's functions behind them.
COMPARISONS = {
    "==": "equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
# What values of a type are called.
_CALLED = {"text": "texts", "number": "numbers", "truth": "true or false"}
OPERATORS = (*COMPARISONS, "!=", "in", "not in", "exists")


class Condition(NamedTuple):
    """One comparison of one field."""

    field: str
    operator: str
    value: Any


def parsed(where: Where | None) -> list[Condition]:
    """The conditions of a filter; UserError where it is not one."""
    if where is None:
        return []
    if not isinstance(where, Mapping):
        raise UserError(
            f'where={where!r} is not a filter; give fields with values, such as {{"lang": "en"}}'
        )
    found = []
    for field, wanted in where.items():
        if wanted is None:
            pairs = [("exists", False)]
        elif isinstance(wanted, Mapping):
            pairs = list(wanted.items())
        elif isinstance(wanted, tuple):
            if len(wanted) != 2:
                raise UserError(
                    f"where: {field}={wanted!r}; expected (operator, value), such as "
                    '(">=", 2020); several values are a list'
                )
            pairs = [wanted]
        else:
            pairs = [("in" if isinstance(wanted, list) else "==", wanted)]
        found += [_checked(str(field), *pair) for pair in pairs]
    return found


def _checked(field: str, operator: Any, value: Any) -> Condition:
    if operator not in OPERATORS:
        raise UserError(f"where: {field} {operator!r}; {nearest(str(operator), OPERATORS)}")
    several = operator in ("in", "not in")
    if several and not isinstance(value, list | tuple):
        raise UserError(f"where: {field} {operator} {value!r}; expected a list of values")
    if operator == "exists" and not isinstance(value, bool):
        raise UserError(f"where: {field} exists {value!r}; expected true or false")
    for single in value if several else [value]:
        if not isinstance(single, str | bool | int | float):
            raise UserError(
                f"where: {field} is compared with {single!r}; expected a text, a number, true or "
                "false"
            )
    return Condition(field, operator, list(value) if several else value)


def why_nothing_fits(conditions: Sequence[Condition], segments: Sequence[Metadata]) -> str:
    """What is odd about a filter that no passage fits: a field or a type that none has; or ""."""
    fields = {field for metadata in segments for field in metadata.fields}
    for field, operator, value in conditions:
        if operator in ("exists", "!=", "not in"):
            continue
        if field not in fields:
            return f"no passage has the field {field!r}; {nearest(field, fields)}"
        known = {kind for metadata in segments for kind in metadata.kinds(field)}
        asked = {kind_of(single) for single in (value if isinstance(value, list) else [value])}
        if not asked & known:
            names = (
                " and ".join(sorted(_CALLED[kind] for kind in kinds)) for kinds in (known, asked)
            )
            return "the values of {!r} are {}, and the filter asks for {}".format(field, *names)
    return ""


def mask(conditions: list[Condition], metadata: Metadata, rows: int) -> np.ndarray:
    """bool [rows]: which of a segment's rows fulfil all conditions."""
    fits = np.ones(rows, bool)
    for condition in conditions:
        fits &= _fits(condition, metadata)
    return fits


def _fits(condition: Condition, metadata: Metadata) -> np.ndarray:
    field, operator, value = condition
    if operator == "exists":
        having = metadata.having(field)
        return having if value else ~having
    if operator in COMPARISONS:
        return metadata.where(field, COMPARISONS[operator], value)
    # A record without the field is none of the values, too.
    several = value if operator in ("in", "not in") else [value]
    equal = np.zeros_like(metadata.having(field))
    for single in several:
        equal |= metadata.where(field, "equal", single)
    return equal if operator == "in" else ~equal
