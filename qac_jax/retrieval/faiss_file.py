"""Vectors as a file that `faiss.read_index` opens: FAISS's IndexFlatIP (exact, inner product).

The format is FAISS's own (`write_index` in faiss/impl/index_write.cpp): a mark, the header of every
index, the number of floats, the rows. It needs no FAISS and holds one block of rows in memory.
"""

from __future__ import annotations

import struct
from typing import IO

import numpy as np

from qac_jax.retrieval.vectors import Vectors


INNER_PRODUCT = 0
_MARK = b"IxFI"
# Dimensions, rows, two numbers that FAISS ignores, whether it is trained, the metric.
_HEADER = struct.Struct("<iqqq?i")
_IGNORED = 1 << 20
_LENGTH = struct.Struct("<Q")
_BLOCK_BYTES = 1 << 26


def write(file: IO[bytes], vectors: Vectors) -> None:
    """Writes all rows in single precision, which IndexFlatIP has; row numbers are FAISS's ids."""
    rows, width = len(vectors), vectors.width
    file.write(_MARK)
    file.write(_HEADER.pack(width, rows, _IGNORED, _IGNORED, True, INNER_PRODUCT))
    file.write(_LENGTH.pack(rows * width))
    for _, block in vectors.blocks(max(1, _BLOCK_BYTES // (4 * width))):
        file.write(np.ascontiguousarray(block, "<f4").tobytes())
