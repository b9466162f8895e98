"""The nearest vectors of a segment among the rows that are allowed."""

from __future__ import annotations

import numpy as np

from qac_jax.live.segment import Segment


# Rows whose scores are in memory at a time.
_BLOCK = 1 << 16
# Below this number of allowed rows, or this share of a segment, each of them is scored.
_FEW, _SMALL_SHARE = 5_000, 0.02

Found = tuple[np.ndarray, np.ndarray]  # scores float32, rows int64 [queries, k]; row -1 for none


def search(segment: Segment, queries: np.ndarray, k: int, allowed: np.ndarray) -> Found:
    """The top k allowed rows for each query, best first; of equal scores the earlier row wins.

    Exact, but for ScaNN's approximation over a large segment.
    """
    count = int(allowed.sum())
    k = min(k, count)
    if not k:
        return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    few = count <= max(_FEW, _SMALL_SHARE * len(segment))
    if segment.scann is not None and not few:
        found = _approximate(segment, queries, k, allowed)
        if found is not None:
            return found
    return _exact(segment, queries, k, None if count == len(segment) else np.flatnonzero(allowed))


def _approximate(
    segment: Segment, queries: np.ndarray, k: int, allowed: np.ndarray
) -> Found | None:
    """ScaNN knows no filters: it is asked for more rows, and those not allowed are left out.

    None where that would be more work than scoring all allowed rows.
    """
    assert segment.scann is not None
    share = float(allowed.mean())
    wanted = k if share == 1 else int(k / share * 1.2) + 20
    while wanted <= max(len(segment) // 8, k):
        scores, rows = segment.scann.search(queries, min(wanted, len(segment)))
        fits = (rows >= 0) & allowed[rows]
        if (fits.sum(1) >= k).all():
            # Those that fit stand first, in their order.
            order = np.argsort(~fits, axis=1, kind="stable")[:, :k]
            return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        wanted *= 2
    return None


def _exact(segment: Segment, queries: np.ndarray, k: int, rows: np.ndarray | None) -> Found:
    """Of all rows, or of some; block by block."""
    best = [np.zeros(0, np.float32)] * len(queries)
    places = [np.zeros(0, np.int64)] * len(queries)
    for start in range(0, len(segment) if rows is None else len(rows), _BLOCK):
        chosen = slice(start, start + _BLOCK) if rows is None else rows[start : start + _BLOCK]
        block = segment.vectors[chosen].astype(np.float32, copy=False)
        gains = queries @ block.T
        numbers = np.arange(start, start + len(block)) if rows is None else chosen
        for query, scores in enumerate(gains):
            merged = np.concatenate([best[query], scores])
            first = top(merged, k)
            best[query] = merged[first]
            places[query] = np.concatenate([places[query], numbers])[first]
    return np.stack(best), np.stack(places).astype(np.int64)


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the top k scores, best first; of equal scores the earlier place wins."""
    if len(scores) > k:
        last = np.partition(scores, len(scores) - k)[len(scores) - k]
        better = np.flatnonzero(scores > last)
        equal = np.flatnonzero(scores == last)[: k - len(better)]
        chosen = np.sort(np.concatenate([better, equal]))
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]
