"""Texts of unequal lengths in batches of few shapes: sorted, so that little is padding.

XLA compiles a program for every shape, so lengths are rounded up to a short list, and all batches
of one length have the same number of rows but for the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


# (up to this length, lengths are multiples of this)
_STEPS = ((64, 8), (128, 16), (256, 32))
_STEP = 64

# Where the model writes, every length is a large program to compile, and reading is little of the
# work: few lengths.
_FEW = (16, 32, 64, 96, 128, 192, 256, 384, 512)
_FEW_STEP = 256


class Batch(NamedTuple):
    """Which rows go together, and the shape they are padded to."""

    rows: np.ndarray  # numbers of texts, at most `size` of them
    size: int
    length: int


def rounded(length: int, limit: int) -> int:
    """The length that a text of `length` tokens is padded to; `limit` is the longest."""
    step = next((step for end, step in _STEPS if length <= end), _STEP)
    return min(-(-max(length, 1) // step) * step, max(limit, length))


def coarse(length: int, limit: int) -> int:
    """The same with few lengths."""
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

    Sizes are multiples of `multiple` (the number of devices) and, so that there are few, powers
    of two times that; `texts` bounds them (0: it does not). The longest come first because they
    need the most memory.
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
    """All texts, the longest first, in batches of `texts` rows each, the last one too: for models
    whose programs are large. `tokens` bounds a batch's tokens, padding included (0: it does not).
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
    """(ids [size, length], lengths [size]) of one batch; rows beyond its texts are one pad long."""
    ids = np.full((batch.size, batch.length), pad, np.int32)
    lengths = np.ones(batch.size, np.int32)
    for place, row in enumerate(batch.rows):
        tokens = rows[row]
        ids[place, : len(tokens)] = tokens
        lengths[place] = len(tokens)
    return ids, lengths
