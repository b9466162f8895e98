"""What a segment's records say beside title and text, as an Arrow file that filters read.

One line for each value: (row, text, number, truth), of which one is set; the lines of a field
stand together, and the file's own metadata says where. So a field may be missing, of several
types or have several values (a list), and a segment needs no schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.artifacts import Writer


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
