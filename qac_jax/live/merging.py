"""Which segments are merged, and the merged segment without deleted rows.

Segments grow as a log-structured merge tree does: eight of about one size become one, so that n
additions of one passage leave some log n segments and rewrite each passage log n times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qac_jax.live.manifest import Listed
from qac_jax.live.postings import Postings
from qac_jax.live.segment import LARGE, Rows, Segment


_FANOUT = 8
# A large segment is merged when this share of it is deleted.
_MANY_DELETED = 0.2
_BLOCK = 1 << 14


def newest(entries: Sequence[Listed]) -> list[range]:
    """The last segments, if enough of them are of one size; the order of rows is kept."""
    size = _FANOUT
    while size <= LARGE:
        length = of_this_size = 0
        while length < len(entries) and (rows := entries[-1 - length].rows) < size:
            of_this_size += rows >= size // _FANOUT
            length += 1
        if of_this_size >= _FANOUT:
            return [range(len(entries) - length, len(entries))]
        size *= _FANOUT
    return []


def runs(entries: Sequence[Listed], *, full: bool = False) -> list[range]:
    """Neighbours that a compaction merges."""
    found: list[range] = []
    start = 0
    for number, entry in enumerate([*entries, None]):
        healthy = (
            entry is not None
            and not full
            and entry.rows >= LARGE
            and entry.deleted < _MANY_DELETED * entry.rows
        )
        if entry is None or healthy:
            run = range(start, number)
            if len(run) > 1 or any(entries[i].deleted for i in run):
                found.append(run)
            start = number + 1
    return found


def merged(parts: Sequence[Segment], alive: Sequence[np.ndarray]) -> Rows:
    """The rows of several segments that are not deleted."""
    pairs = list(zip(parts, alive, strict=True))

    def records() -> Iterator[dict[str, Any]]:
        for part, mask in pairs:
            yield from part.kept(mask)

    def blocks() -> Iterator[np.ndarray]:
        for part, mask in pairs:
            rows = np.flatnonzero(mask)
            for start in range(0, len(rows), _BLOCK):
                yield part.vectors[rows[start : start + _BLOCK]]

    return Rows(
        records,
        sum(int(mask.sum()) for mask in alive),
        parts[0].vectors.shape[1],
        blocks,
        Postings.merged([part.words for part in parts], alive),
    )
