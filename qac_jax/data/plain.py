"""Files of examples that need no package to be read or written: for machines with little but JAX.

A file is the number of its records, where each one ends (both int64, little-endian), and their
bytes one after the other: the same bytes as in an ArrayRecord file (`data/store.py`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence

import numpy as np

from qac_jax.errors import DataError


PREFIX = "examples-train.plain"
_NUMBER = np.dtype("<i8")


def write(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Writes serialised records to a file; returns their number."""
    kept = list(records)
    ends = np.cumsum([0, *map(len, kept)], dtype=_NUMBER)[1:]
    with open(path, "wb") as file:
        file.write(np.array([len(kept)], _NUMBER).tobytes())
        file.write(ends.tobytes())
        file.writelines(kept)
    return len(kept)


class Reader:
    """A file, mapped into memory: `read` as array_record's reader has it."""

    def __init__(self, path: str | os.PathLike[str]):
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        width = _NUMBER.itemsize
        whole = len(self._bytes) >= width
        self.count = int(np.frombuffer(self._bytes, _NUMBER, 1)[0]) if whole else -1
        self._first = width * (1 + self.count)
        if self.count < 0 or self._first > len(self._bytes):
            raise DataError("is not a file of examples; tokenize again", file=os.fspath(path))
        self._ends = np.frombuffer(self._bytes, _NUMBER, self.count, width).tolist()
        if self._first + (self._ends[-1] if self._ends else 0) != len(self._bytes):
            raise DataError("is cut off; tokenize again", file=os.fspath(path))

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The records of these numbers."""
        return [self._record(number) for number in numbers]

    def _record(self, number: int) -> bytes:
        begin = self._ends[number - 1] if number else 0
        return self._bytes[self._first + begin : self._first + self._ends[number]]
