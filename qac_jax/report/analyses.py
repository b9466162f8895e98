"""Plots and tables of two analyses: similarity (PAIR, Figure 4), relatedness (QAC, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from qac_jax.evaluation.similarity import Similarity
from qac_jax.report.tables import number


_COLOURS = ("#1b6ca8", "#c4501b", "#3a7d44", "#7b4b94", "#8a6d1f", "#555555")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 64, 200, 24, 48
_BAR_COLOURS = ("#1f5fa8", "#e08b27", "#4c9a63", "#9a5fb5")


def similarity_table(found: Mapping[str, Similarity]) -> str:
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


def similarity_svg(found: Mapping[str, Similarity]) -> str:
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


def relatedness_svg(shares: Mapping[str, Mapping[str, float]]) -> str:
    """The shares as bars, an SVG of its own."""
    width, height, left, bottom, top = 640, 320, 48, 56, 40
    names = list(next(iter(shares.values())))
    room = (width - left - 16) / len(names)
    bar = 0.8 * room / len(shares)
    scale = height - bottom - top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for tick in range(0, 101, 25):
        y = height - bottom - scale * tick / 100
        parts.append(f'<line x1="{left}" x2="{width - 16}" y1="{y}" y2="{y}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick} %</text>')
    for series, (sort, values) in enumerate(shares.items()):
        colour = _BAR_COLOURS[series % len(_BAR_COLOURS)]
        for place, name in enumerate(names):
            x = left + place * room + 0.1 * room + series * bar
            tall = scale * values[name]
            parts.append(
                f'<rect x="{x:.1f}" y="{height - bottom - tall:.1f}" width="{bar:.1f}" '
                f'height="{tall:.1f}" fill="{colour}"/>'
            )
        x = left + 10 + series * 150
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="22">{escape(sort)}</text>')
    for place, name in enumerate(names):
        x = left + (place + 0.5) * room
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">')
        parts.append(f"{escape(name)}</text>")
    parts.append(
        f'<text x="{(width + left) / 2}" y="{height - 12}" text-anchor="middle">place of the '
        "passage in BM25's ranking for its context</text></svg>"
    )
    return "\n".join(parts) + "\n"
