"""The ids of an index's rows on disk: one a line, and where each line begins.

`ids.txt` can be read by people too; `ids_offsets.npy` gives random access. Neither is loaded into
memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError


FILE, OFFSETS = "ids.txt", "ids_offsets.npy"


def write(out: Writer, ids: Iterable[str]) -> int:
    """Writes both files; returns how many ids there are."""
    ends = [0]
    with out.open(FILE, "wb") as file:
        for name in ids:
            line = name.encode() + b"\n"
            if line.count(b"\n") > 1 or len(line) == 1:
                raise UserError(f"the id {name!r} is empty or holds a line's end; rename it")
            file.write(line)
            ends.append(ends[-1] + len(line))
    with out.temporary(OFFSETS) as path:
        arrays.save(path, np.array(ends, np.uint64))
    return len(ends) - 1


class Ids(Sequence[str]):
    """Row -> id, of a finished artefact."""

    def __init__(self, artifact: Artifact):
        path = os.fspath(artifact.file(FILE))
        self._offsets = np.load(os.fspath(artifact.file(OFFSETS)), mmap_mode="r")
        if int(self._offsets[-1]) != os.path.getsize(path):
            raise UserError(f"{path} does not fit {OFFSETS}; make the artefact again")
        self._text: bytes | mmap.mmap = b""
        if len(self):
            with open(path, "rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        index = int(item)
        if not 0 <= index < len(self):
            raise IndexError(f"row {item} of {len(self)}")
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        return self._text[begin : end - 1].decode()

    def many(self, rows: np.ndarray) -> list[str]:
        """The ids of rows; rows below 0 (fewer hits than k) are left out."""
        return [self[row] for row in rows.tolist() if row >= 0]
