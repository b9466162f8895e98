"""Metadata of passages, and filters of them: the rows of a segment that fit `where`.

    {"lang": "en", "year": (">=", 2020)}            # both must hold
    {"lang": ["en", "de"], "year": {">=": 2000, "<": 2010}, "draft": None}

A value: the field equals it (or has it among its values). A list: any of these. A tuple (in
Python) or a mapping (in JSON too): comparisons. None: the record does not have the field.

Metadata is an Arrow file with a line for each value: (row, text, number, truth), of which one is
set; the lines of a field stand together, and the file's own metadata says where. So a field may be
missing, of several types or have several values (a list), and a segment needs no schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qac_jax.artifacts import Writer
from qac_jax.errors import UserError, nearest


FILE = "metadata.arrow"
# What is not metadata.
OWN = ("_id", "title", "text")

_FIELDS = b"fields"
_KINDS: dict[str, Any] = {"text": str, "truth": bool, "number": (int, float)}
# Longer texts are no values to filter by.
_LONGEST = 1024


def values(record: Mapping[str, Any]) -> Iterator[tuple[str, str | bool | float]]:
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


def write(out: Writer, records: Iterable[Mapping[str, Any]]) -> None:
    """The metadata of records, in their order."""
    import pyarrow as pa

    found: dict[str, list[tuple[int, Any]]] = {}
    for row, record in enumerate(records):
        for field, value in values(record):
            found.setdefault(field, []).append((row, value))
    places, start = {}, 0
    for field, pairs in found.items():
        places[field] = (start, start + len(pairs))
        start += len(pairs)
    every = [pair for pairs in found.values() for pair in pairs]
    columns = {
        "row": pa.array([row for row, _ in every], pa.int32()),
        "text": pa.array([v if isinstance(v, str) else None for _, v in every], pa.string()),
        "number": pa.array([_number(v) for _, v in every], pa.float64()),
        "truth": pa.array([v if isinstance(v, bool) else None for _, v in every], pa.bool_()),
    }
    table = pa.table(columns).replace_schema_metadata({_FIELDS: json.dumps(places).encode()})
    with out.open(FILE, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def kind_of(value: Any) -> str:
    """The type of a value that passages are filtered by."""
    return next(name for name, types in _KINDS.items() if isinstance(value, types))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Metadata:
    """The metadata of a finished segment, memory-mapped."""

    def __init__(self, folder: Path, rows: int):
        import pyarrow as pa

        self._rows = rows
        self._table = pa.ipc.open_file(pa.memory_map(str(folder / FILE))).read_all()
        known = (self._table.schema.metadata or {}).get(_FIELDS, b"{}")
        self._places: dict[str, tuple[int, int]] = json.loads(known)

    @property
    def fields(self) -> list[str]:
        return list(self._places)

    def kinds(self, field: str) -> set[str]:
        """Of what type the values of a field are: text, number, truth."""
        part = self._part(field)
        return {kind for kind in _KINDS if part[kind].null_count < len(part)}

    def having(self, field: str) -> np.ndarray:
        """bool [rows]: the rows that have any value of a field."""
        return self._mask(field, None)

    def where(self, field: str, operator: str, value: Any) -> np.ndarray:
        """bool [rows]: the rows with a value that fits, such as ("year", "greater", 2020).

        `operator`: the name of one of Arrow's functions. A value of another type does not fit.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        part = self._part(field)
        kind = kind_of(value)
        compared = pa.scalar(float(value) if kind == "number" else value)
        return self._mask(field, getattr(pc, operator)(part[kind], compared))

    def _part(self, field: str) -> Any:
        start, stop = self._places.get(field, (0, 0))
        return self._table.slice(start, stop - start)

    def _mask(self, field: str, chosen: Any) -> np.ndarray:
        rows = self._part(field)["row"]
        rows = rows if chosen is None else rows.filter(chosen)
        mask = np.zeros(self._rows, bool)
        mask[rows.to_numpy()] = True
        return mask


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
    """Why no passage fits a filter: a field or a type that none has; or ""."""
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
