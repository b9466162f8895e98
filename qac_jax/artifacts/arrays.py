"""numpy files that are whole.

`numpy.save` and `tofile` write through C's buffers and do not look whether the last block reached
the disk: on one that is full, up to 4,096 bytes were missing without an error.
"""

import os
from typing import IO, Any


def save(path: os.PathLike[str] | str, array: Any) -> None:
    """Writes a `.npy` file, or raises OSError."""
    with open(os.fspath(path), "wb") as file:
        write(file, array)


def write(file: IO[bytes], array: Any) -> None:
    import numpy as np  # commands that only explain themselves load this module too

    np.lib.format.write_array(_Stream(file), np.asanyarray(array), allow_pickle=False)


class _Stream:
    """A file that numpy writes through and not past: one without a descriptor."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)
