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


class Batch(NamedTuple):
    """Which rows go together, and the shape they are padded to."""

    rows: np.ndarray  # numbers of texts, at most `size` of them
    size: int
    length: int


def rounded(length: int, limit: int) -> int:
    """The length that a text of `length` tokens is padded to; `limit` is the longest."""
    step = next((step for end, step in _STEPS if length <= end), _STEP)
    return min(-(-max(length, 1) // step) * step, max(limit, length))


def batches(
    lengths: Sequence[int] | np.ndarray, tokens: int, *, multiple: int = 1, limit: int = 512
) -> Iterator[Batch]:
    """All texts, the longest first, in batches of about `tokens` tokens, padding included.

    Sizes are multiples of `multiple` (the number of devices) and, so that there are few, powers
    of two times that. The longest come first because they need the most memory.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        length = rounded(int(lengths[order[start]]), limit)
        fitting = max(tokens // (length * multiple), 1)
        size = multiple << (fitting.bit_length() - 1)
        left = len(order) - start
        while size // 2 >= max(left, multiple):
            size //= 2
        rows = order[start : start + size]
        yield Batch(rows, size, length)
        start += len(rows)
