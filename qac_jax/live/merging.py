"""Which segments are merged, and the merged segment without deleted rows.

Segments grow as a log-structured merge tree does: eight of about one size become one, so that n
additions of one passage leave some log n segments and rewrite each passage log n times. They do not
grow without end: building ScaNN's part of a segment takes more than three times the memory of its
vectors, so that a large index is built and compacted one segment of bounded size after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qac_jax.live.manifest import Listed
from qac_jax.live.postings import Postings
from qac_jax.live.segment import LARGE, Rows, Segment


# Rows that a merged segment has at most.
MOST = 1 << 17
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
    """Neighbours that a compaction merges: together no more than a segment holds."""
    found: list[range] = []
    start = rows = 0

    def end(number: int) -> None:
        run = range(start, number)
        changes = len(run) > 1 or any(entries[i].deleted for i in run)
        if changes or (full and rows > MOST):
            found.append(run)

    for number, entry in enumerate(entries):
        few = entry.deleted < _MANY_DELETED * entry.rows
        if not full and entry.rows >= LARGE and few:  # it stays
            end(number)
            start, rows = number + 1, 0
            continue
        alive = entry.rows - entry.deleted
        if rows and rows + alive > MOST:
            end(number)
            start, rows = number, 0
        rows += alive
    end(len(entries))
    return found


def merged(parts: Sequence[Segment], alive: Sequence[np.ndarray]) -> Iterator[Rows]:
    """The rows of several segments that are not deleted, in their order: one segment, or where they
    are more than it holds several of about equal size."""
    sizes = [int(mask.sum()) for mask in alive]
    count = -(-sum(sizes) // MOST)
    ends = np.linspace(0, sum(sizes), count + 1).astype(np.int64)
    for start, stop in itertools.pairwise(ends.tolist()):
        chosen: list[tuple[Segment, np.ndarray]] = []
        before = 0
        for part, mask, size in zip(parts, alive, sizes, strict=True):
            first, last = max(start - before, 0), min(stop - before, size)
            if first < last:
                rows = np.flatnonzero(mask)[first:last]
                mine = np.zeros(len(mask), bool)
                mine[rows] = True
                chosen.append((part, mine))
            before += size
        yield _together(chosen)


def _together(pairs: Sequence[tuple[Segment, np.ndarray]]) -> Rows:
    def records() -> Iterator[dict[str, Any]]:
        for part, mask in pairs:
            yield from part.kept(mask)

    def blocks() -> Iterator[np.ndarray]:
        for part, mask in pairs:
            rows = np.flatnonzero(mask)
            for start in range(0, len(rows), _BLOCK):
                yield part.vectors[rows[start : start + _BLOCK]]

    parts, masks = zip(*pairs, strict=True)
    return Rows(
        records,
        sum(int(mask.sum()) for mask in masks),
        parts[0].vectors.shape[1],
        blocks,
        Postings.merged([part.words for part in parts], masks),
    )
