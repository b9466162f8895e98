"""Filters of passages by their metadata, as conditions of SQL.

    {"lang": "en", "year": (">=", 2020)}            # both must hold
    {"lang": ["en", "de"], "year": {">=": 2000, "<": 2010}, "draft": None}

A value: the field equals it (or has it among its values). A list: any of these. A tuple (in
Python) or a mapping (in JSON too): comparisons. None: the record does not have the field.

A field may be missing, of several types or have several values (a list): each value is a line
(field, type, value, row) of a table.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.errors import UserError, nearest


# What is not metadata.
OWN = ("_id", "title", "text")
# Types, and what their values are called.
_KINDS: dict[str, Any] = {"text": str, "truth": bool, "number": (int, float)}
_CALLED = {"text": "texts", "number": "numbers", "truth": "true or false"}
# Longer texts are no values to filter by.
_LONGEST = 1024
_COMPARISONS = {"==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
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
                if isinstance(single, str | bool | int | float) and len(str(single)) <= _LONGEST:
                    yield field, single


def stored(value: Value) -> tuple[str, Value]:
    """The type of a value and what is stored of it: values of another type do not fit."""
    kind = next(name for name, types in _KINDS.items() if isinstance(value, types))
    return kind, float(value) if kind == "number" else value


class Condition(NamedTuple):
    """One comparison of one field."""

    field: str
    operator: str
    value: Any

    @property
    def alternatives(self) -> list[Value]:
        return self.value if isinstance(self.value, list) else [self.value]

    def queries(self) -> tuple[list[tuple[str, list[Any]]], bool]:
        """Queries of the rows that fit any of them; True: the others are meant."""
        if self.operator == "exists":
            return [("field = ?", [self.field])], not self.value
        # A record without the field is none of the values, too.
        others = self.operator in ("!=", "not in")
        sign = _COMPARISONS.get(self.operator, "=")
        query = f"field = ? AND kind = ? AND value {sign} ?"
        return [(query, [self.field, *stored(each)]) for each in self.alternatives], others


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


def why_nothing_fits(conditions: Sequence[Condition], known: Mapping[str, set[str]]) -> str:
    """Why no passage fits a filter: a field or a type that none has; or "".

    `known`: the types of each field's values.
    """
    for condition in conditions:
        field = condition.field
        if condition.operator in ("exists", "!=", "not in"):
            continue
        if field not in known:
            return f"no passage has the field {field!r}; {nearest(field, known)}"
        asked = {stored(single)[0] for single in condition.alternatives}
        if not asked & known[field]:
            has, wants = (
                " and ".join(sorted(_CALLED[kind] for kind in kinds))
                for kinds in (known[field], asked)
            )
            return f"the values of {field!r} are {has}, and the filter asks for {wants}"
    return ""
