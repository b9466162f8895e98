"""numpy files that are whole, and hold what they should.

`numpy.save` and `tofile` write through C's buffers and do not look whether the last block reached
the disk: on one that is full, up to 4,096 bytes were missing without an error.
"""

import os
from typing import IO, Any

from qac_jax.errors import UserError, sound


def save(path: os.PathLike[str] | str, array: Any) -> None:
    """Writes a `.npy` file, or raises OSError."""
    with open(os.fspath(path), "wb") as file:
        write(file, array)


def write(file: IO[bytes], array: Any) -> None:
    import numpy as np  # commands that only explain themselves load this module too

    np.lib.format.write_array(_Stream(file), np.asanyarray(array), allow_pickle=False)


def read(path: os.PathLike[str] | str, *types: str, axes: int = 1) -> Any:
    """A file that is mapped into memory, if it is an array of one of these types."""
    import numpy as np

    with sound(path):
        array = np.load(os.fspath(path), mmap_mode="r", allow_pickle=False)
        if array.dtype not in map(np.dtype, types) or array.ndim != axes:
            raise TypeError(f"{array.dtype} of shape {array.shape}; expected {' or '.join(types)}")
        if array.size and array.offset + array.nbytes != os.path.getsize(path) or array.flags.fnc:
            raise ValueError("it has another length")
    # As a plain array: one of numpy's memmap class takes microseconds for every element.
    return array.view(np.ndarray)


def read_offsets(path: os.PathLike[str] | str, end: int, count: int) -> Any:
    """Where each of `count` items begins in `end` bytes, and the end."""
    offsets = read(path, "uint64")
    if len(offsets) != count + 1 or offsets[0] or offsets[-1] != end:
        raise UserError(f"{path} does not fit what it counts; make the artefact again")
    if (offsets[1:] < offsets[:-1]).any():
        raise UserError(f"{path} is not in ascending order; make the artefact again")
    return offsets


class _Stream:
    """A file that numpy writes through and not past: one without a descriptor."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)
