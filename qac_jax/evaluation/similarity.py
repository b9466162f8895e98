"""PAIR's Figure 4: is a positive passage nearer to its query than to what ranks beside it?

For each query the passages of its ranking that are not judged relevant, at ranks 1 to 100, are the
negatives p⁻; p⁺ is its positive. s(p⁺, q) should be above s(p⁺, p⁻), which is what the
passage-centric loss asks for.

    found = compare(query_vectors, positive_vectors, negative_vectors, ranks, depth=100)
    svg({"PAIR": found, "without": other})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from qac_jax.evaluation.tables import number


_COLOURS = ("#1b6ca8", "#c4501b", "#3a7d44", "#7b4b94", "#8a6d1f", "#555555")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 64, 200, 24, 48


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Means over queries. `by_rank[r]` is s(p⁺, p⁻) of the negatives at rank r + 1 (None: none)."""

    queries: int
    to_query: float  # mean s(p⁺, q)
    to_negatives: float  # mean s(p⁺, p⁻)
    nearer: float  # share of pairs in which the query is the nearer one
    cosine_to_query: float
    cosine_to_negatives: float
    by_rank: tuple[float | None, ...]

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Similarity:
        return cls(**{**record, "by_rank": tuple(record["by_rank"])})


def compare(
    queries: np.ndarray,
    positives: np.ndarray,
    negatives: Sequence[np.ndarray],
    ranks: Sequence[Sequence[int]],
    depth: int = 100,
) -> Similarity:
    """queries, positives [Q, D]; negatives[i] [N, D] stand at the ranks (from 1) ranks[i]."""
    if not len(queries):
        raise ValueError("no query has a positive and negatives")
    to_query = np.einsum("qd,qd->q", positives, queries, dtype=np.float64)
    sums, counts = np.zeros(depth), np.zeros(depth, np.int64)
    nearer: list[float] = []
    means: list[float] = []
    cosines: list[float] = []
    for row, (found, places) in enumerate(zip(negatives, ranks, strict=True)):
        scores = found.astype(np.float64) @ positives[row].astype(np.float64)
        at = np.asarray(places) - 1
        np.add.at(sums, at, scores)
        np.add.at(counts, at, 1)
        nearer.append(float(np.mean(to_query[row] > scores)))
        means.append(float(scores.mean()))
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(positives[row])
        cosines.append(float(np.mean(scores / np.maximum(lengths, 1e-12))))
    lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(positives, axis=1)
    return Similarity(
        queries=len(queries),
        to_query=float(to_query.mean()),
        to_negatives=float(np.mean(means)),
        nearer=float(np.mean(nearer)),
        cosine_to_query=float(np.mean(to_query / np.maximum(lengths, 1e-12))),
        cosine_to_negatives=float(np.mean(cosines)),
        by_rank=tuple(
            float(total / count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ),
    )


def table(found: Mapping[str, Similarity]) -> str:
    """A Markdown table, one encoder a line."""
    lines = [
        "| encoder | queries | s(p⁺, q) | s(p⁺, p⁻) | query nearer | cosine q | cosine p⁻ |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {s.queries:,} | {number(s.to_query)} | {number(s.to_negatives)} "
        f"| {s.nearer:.1%} | {number(s.cosine_to_query)} | {number(s.cosine_to_negatives)} |"
        for name, s in found.items()
    ]
    return "\n".join(lines)


def svg(found: Mapping[str, Similarity]) -> str:
    """s(p⁺, p⁻) over ranks as lines, s(p⁺, q) as broken ones; every encoder has a colour.

    Encoders' scores have scales of their own, so each is drawn relative to its s(p⁺, q): below the
    line at 0 a negative is farther from the positive passage than the query is.
    """
    curves = {
        name: [(r + 1, v - s.to_query) for r, v in enumerate(s.by_rank) if v is not None]
        for name, s in found.items()
    }
    values = [0.0, *(value for points in curves.values() for _, value in points)]
    low, high = min(values), max(values)
    room = 0.05 * (high - low or 1.0)
    low, high = low - room, high + room
    last = max((points[-1][0] for points in curves.values() if points), default=1)
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(rank: float, value: float) -> str:
        x = _LEFT + inner * (rank - 1) / max(last - 1, 1)
        y = _TOP + tall * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img">',
        "<title>How near negatives are to the positive passage, against its query</title>",
        f'<rect x="{_LEFT}" y="{_TOP}" width="{inner}" height="{tall}" fill="none" stroke="#999"/>',
        f'<polyline points="{at(1, 0)} {at(last, 0)}" stroke="#333" stroke-dasharray="5 4" '
        'fill="none"/>',
    ]
    for value in (low + room, 0.0, high - room):
        y = at(1, value).split(",")[1]
        parts.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{value:.2f}</text>')
    for rank in (1, last):
        x = at(rank, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 28}" text-anchor="middle">{rank}</text>')
    parts.append(
        f'<text x="{_LEFT + inner / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">'
        "rank of the negative</text>"
    )
    parts.append(
        f'<text x="{_LEFT}" y="{_TOP - 8}">s(p⁺, p⁻) - s(p⁺, q); broken line: the query</text>'
    )
    for place, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        line = " ".join(at(rank, value) for rank, value in points)
        parts.append(f'<polyline points="{line}" stroke="{colour}" stroke-width="2" fill="none"/>')
        below = _TOP + 16 + 18 * place
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 10}" y="{below}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
