"""Texts of different lengths in batches of few shapes, sorted by length to reduce padding.

XLA compiles a program for every shape, so lengths are rounded up to those of a short list, and all
batches of one length have the same number of rows, except the last.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


# (up to this length, lengths are multiples of this)
_STEPS = ((64, 8), (128, 16), (256, 32))
_STEP = 64

# For generation, whose programs are large and whose reading is a small part of the work.
_FEW = (16, 32, 64, 96, 128, 192, 256, 384, 512)
_FEW_STEP = 256


class Batch(NamedTuple):
    """The texts of one batch, and the shape they are padded to."""

    rows: np.ndarray  # numbers of texts, at most `size` of them
    size: int
    length: int


def rounded(length: int, limit: int) -> int:
    """The length that a text of `length` tokens is padded to, at most `limit`."""
    step = next((step for end, step in _STEPS if length <= end), _STEP)
    return min(-(-max(length, 1) // step) * step, max(limit, length))


def coarse(length: int, limit: int) -> int:
    """As `rounded`, with fewer lengths."""
    fitting = next((end for end in _FEW if length <= end), -(-length // _FEW_STEP) * _FEW_STEP)
    return max(min(fitting, limit), length)


def batches(
    lengths: Sequence[int] | np.ndarray,
    tokens: int,
    *,
    texts: int = 0,
    multiple: int = 1,
    limit: int = 512,
) -> Iterator[Batch]:
    """All texts, the longest first, in batches of about `tokens` tokens, padding included.

    Sizes are `multiple` (the number of devices) times powers of two, so that there are few, up to
    `texts` (0: any). The longest come first because they need the most memory.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        length = rounded(int(lengths[order[start]]), limit)
        fitting = max(tokens // (length * multiple), 1)
        if texts:
            fitting = min(fitting, max(texts // multiple, 1))
        size = multiple << (fitting.bit_length() - 1)
        left = len(order) - start
        while size // 2 >= max(left, multiple):
            size //= 2
        rows = order[start : start + size]
        yield Batch(rows, size, length)
        start += len(rows)


def even_batches(
    lengths: Sequence[int] | np.ndarray,
    texts: int,
    *,
    tokens: int = 0,
    multiple: int = 1,
    limit: int = 512,
) -> Iterator[Batch]:
    """All texts, the longest first, in batches of `texts` rows each, for models that generate.

    The last batch is padded to the same size. `tokens`: of a batch at most, padding included.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    size = texts
    if tokens and len(order):
        fitting = tokens // coarse(int(lengths[order[0]]), limit)
        size = min(size, max(fitting // multiple, 1) * multiple)
    while size // 2 >= max(len(order), multiple):
        size //= 2  # few texts
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield Batch(rows, size, coarse(int(lengths[rows[0]]), limit))


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], batch: Batch, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids [size, length], lengths [size]) of one batch; padding rows have length 1."""
    ids = np.full((batch.size, batch.length), pad, np.int32)
    lengths = np.ones(batch.size, np.int32)
    for place, row in enumerate(batch.rows):
        tokens = rows[row]
        ids[place, : len(tokens)] = tokens
        lengths[place] = len(tokens)
    return ids, lengths
