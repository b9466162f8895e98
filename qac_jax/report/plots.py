"""Plots as SVG text for a page: lines, histograms, bars. No library draws them, nothing is loaded.

Colours are classes (`c0` … `c7`), so that the page decides them for light, dark and paper. The
drawing is 420 units wide: at the width of a phone its letters are still read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from qac_jax.progress import human


WIDTH, HEIGHT = 420, 250
COLOURS = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 10, 10, 42
_MOST_POINTS = 400


class Series(NamedTuple):
    """One line: where it goes through, and what it is called."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Axis(NamedTuple):
    """How values become places along one side of the drawing."""

    ticks: list[float]
    place: Callable[[float], float]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that enclose the values, about `count` steps apart."""
    if not high > low:
        room = 0.1 * abs(low) or 1.0
        low, high = low - room, high + room
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def lines(
    series: Sequence[Series], x_label: str, y_label: str, *, log_x: bool = False, dots: bool = False
) -> str:
    """Several lines over one another, with a legend where there are more than one."""
    drawn = [_finite(s) for s in series]
    drawn = [s for s in drawn if s.x]
    if not drawn:
        return ""
    xs, ys = [v for s in drawn for v in s.x], [v for s in drawn for v in s.y]
    across, up = _across(min(xs), max(xs), log_x), _up(min(ys), max(ys))
    parts = [_frame(across, up, x_label, y_label)]
    for number, one in enumerate(drawn):
        thin = range(0, len(one.x), max(1, len(one.x) // _MOST_POINTS))
        points = [(across.place(one.x[i]), up.place(one.y[i])) for i in thin]
        colour = f"c{number % COLOURS}"
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        if dots or len(points) == 1:
            told = [f"{_told(one.x[i])}: {_told(one.y[i])}" for i in thin]
            parts += [
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                f"<title>{escape(text)}</title></circle>"
                for (x, y), text in zip(points, told, strict=True)
            ]
    return _figure(parts, [s.name for s in drawn], f"{y_label} by {x_label}")


def histogram(groups: Sequence[tuple[str, Sequence[float]]], x_label: str, bins: int = 20) -> str:
    """Shares of the values of each group in equal intervals, one outline a group."""
    groups = [(name, [v for v in values if math.isfinite(v)]) for name, values in groups]
    groups = [(name, values) for name, values in groups if values]
    if not groups:
        return ""
    marks = ticks(min(min(v) for _, v in groups), max(max(v) for _, v in groups))
    low, high = marks[0], marks[-1]
    shares = []
    for _, values in groups:
        counts = [0] * bins
        for value in values:
            counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
        shares.append([count / len(values) for count in counts])
    across, up = _across(low, high), _up(0.0, max(map(max, shares)))
    parts = [_frame(across, up, x_label, "share")]
    for number, heights in enumerate(shares):
        edges = [low + (high - low) * i / bins for i in range(bins + 1)]
        points = [(edges[0], 0.0)]
        for i, height in enumerate(heights):
            points += [(edges[i], height), (edges[i + 1], height)]
        points.append((edges[-1], 0.0))
        path = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        parts.append(f'<polygon class="area c{number % COLOURS}" points="{path}"/>')
    return _figure(parts, [name for name, _ in groups], f"distribution of {x_label}")


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> str:
    """Horizontal bars: (name, value, what to write beside it)."""
    if not rows:
        return ""
    height = 22
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    room = WIDTH - 130 - 90
    parts = []
    for number, (name, value, told) in enumerate(rows):
        y = number * height
        width = max(room * value / longest, 1.0)
        shown = name if len(name) <= 18 else name[:17] + "…"
        parts.append(
            f'<text class="end" x="124" y="{y + 15}">{escape(shown)}</text>'
            f'<rect class="bar c0" x="130" y="{y + 4}" width="{width:.1f}" height="14" rx="2"/>'
            f'<text x="{136 + width:.1f}" y="{y + 15}">{escape(told)}</text>'
        )
    return _figure(parts, [], label, len(rows) * height + 4)


def _finite(series: Series) -> Series:
    pairs = zip(series.x, series.y, strict=True)
    kept = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    return Series(series.name, [x for x, _ in kept], [y for _, y in kept])


def _across(low: float, high: float, log: bool = False) -> Axis:
    inner = WIDTH - _LEFT - _RIGHT
    if log and low > 0:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [10.0**p for p in powers]
        marks = marks if len(marks) > 1 else [marks[0], marks[0] * 10]
        span = math.log10(marks[-1] / marks[0])
        return Axis(marks, lambda x: _LEFT + inner * math.log10(x / marks[0]) / span)
    marks = ticks(low, high)
    return Axis(marks, lambda x: _LEFT + inner * (x - marks[0]) / (marks[-1] - marks[0]))


def _up(low: float, high: float) -> Axis:
    marks, inner = ticks(low, high, 4), HEIGHT - _TOP - _BOTTOM
    return Axis(marks, lambda y: HEIGHT - _BOTTOM - inner * (y - marks[0]) / (marks[-1] - marks[0]))


def _frame(across: Axis, up: Axis, x_label: str, y_label: str) -> str:
    """Grid, numbers and names of both axes."""
    floor = HEIGHT - _BOTTOM
    parts = []
    for value in up.ticks:
        y = up.place(value)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
            f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{_told(value)}</text>'
        )
    for value in across.ticks:
        x = across.place(value)
        # The last number would stand half outside.
        end = " end" if x > WIDTH - 24 else " middle"
        parts.append(
            f'<path class="grid" d="M{x:.1f} {_TOP}V{floor}"/>'
            f'<text class="{end.strip()}" x="{x:.1f}" y="{floor + 15}">{_told(value)}</text>'
        )
    middle = (_TOP + floor) / 2
    parts.append(
        f'<text class="middle name" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}">'
        f"{escape(x_label)}</text>"
        f'<text class="middle name" transform="translate(11 {middle}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)


def _figure(parts: Sequence[str], names: Sequence[str], label: str, height: int = HEIGHT) -> str:
    legend = ""
    if len(names) > 1:
        entries = "".join(
            f'<span><i class="c{n % COLOURS}"></i>{escape(name)}</span>'
            for n, name in enumerate(names)
        )
        legend = f"<figcaption>{entries}</figcaption>"
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
    return f"<figure>{drawing}{legend}</figure>"


def _told(value: float) -> str:
    if abs(value) >= 10_000:
        return human(value)
    if 0 < abs(value) < 0.01:
        # Short enough for the room beside the axis: 2.5e-4.
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"
