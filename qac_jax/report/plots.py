"""Lines, histograms, bars and grouped columns; a plot of nothing is an empty drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qac_jax.report import svg
from qac_jax.report.svg import Drawing, Frame


_MAX_POINTS = 400
# Horizontal bars: their height with the space between, the names' width and the values'.
_BAR, _NAMES, _VALUES = 22, 130, 90
_MAX_NAME = 18


class Series(NamedTuple):
    """One line: its name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    dots: bool = False,
    reference: float | None = None,
) -> Drawing:
    """Several lines over one another; `reference` is a dashed line at this height."""
    drawn = [one for one in map(_finite, series) if one.x]
    if not drawn:
        return Drawing()
    frame = Frame()
    xs = [x for one in drawn for x in one.x]
    ys = [y for one in drawn for y in one.y] + ([] if reference is None else [reference])
    log_x = log_x and min(xs) > 0
    across = svg.logarithmic(xs, *frame.across) if log_x else svg.linear(xs, *frame.across)
    log_y = log_y and min(ys) > 0
    up = svg.logarithmic(ys, *frame.up) if log_y else svg.linear(ys, *frame.up, 4)
    parts = [frame.vertical(up, y_label), frame.horizontal(across, x_label)]
    if reference is not None:
        height = up.place(reference)
        parts.append(svg.line([(x, height) for x in frame.across], "reference"))
    for number, one in enumerate(drawn):
        kept = range(0, len(one.x), max(1, len(one.x) // _MAX_POINTS))
        points = [(across.place(one.x[i]), up.place(one.y[i])) for i in kept]
        colour = svg.colour(number)
        parts.append(svg.line(points, colour))
        if dots or len(points) == 1:
            names = (f"{svg.number(one.x[i])}: {svg.number(one.y[i])}" for i in kept)
            parts += [
                svg.dot(x, y, name, colour) for (x, y), name in zip(points, names, strict=True)
            ]
    return Drawing(parts, f"{y_label} by {x_label}", [one.name for one in drawn])


def histogram(
    groups: Sequence[tuple[str, Sequence[float]]], x_label: str, bins: int = 20
) -> Drawing:
    """Shares of the values of each group in equal intervals, one outline a group."""
    finite = [(name, list(filter(math.isfinite, values))) for name, values in groups]
    finite = [(name, values) for name, values in finite if values]
    if not finite:
        return Drawing()
    frame = Frame()
    across = svg.linear([v for _, values in finite for v in values], *frame.across)
    low, high = across.ticks[0], across.ticks[-1]
    shares = []
    for _, values in finite:
        counts = [0] * bins
        for value in values:
            counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
        shares.append([count / len(values) for count in counts])
    up = svg.linear([0.0, *itertools.chain(*shares)], *frame.up, 4)
    edges = [low + (high - low) * i / bins for i in range(bins + 1)]
    parts = [frame.vertical(up, "share"), frame.horizontal(across, x_label)]
    for number, heights in enumerate(shares):
        steps = zip(edges, edges[1:], heights, strict=False)
        corners = [(low, 0.0), *((x, h) for a, b, h in steps for x in (a, b)), (high, 0.0)]
        points = [(across.place(x), up.place(y)) for x, y in corners]
        parts.append(svg.area(points, svg.colour(number)))
    return Drawing(parts, f"distribution of {x_label}", [name for name, _ in finite])


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> Drawing:
    """Horizontal bars: (name, value, the value as it is written)."""
    if not rows:
        return Drawing()
    longest = max(value for _, value, _ in rows) or 1.0
    parts = []
    for number, (name, value, written) in enumerate(rows):
        y = number * _BAR
        width = max((Frame.width - _NAMES - _VALUES) * value / longest, 1.0)
        short = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
        parts += [
            svg.text(_NAMES - 6, y + 15, short, "end"),
            svg.bar(_NAMES, y + 4, width, 14, svg.colour(0)),
            svg.text(_NAMES + 6 + width, y + 15, written),
        ]
    return Drawing(parts, label, height=len(rows) * _BAR + 4)


def columns(groups: Mapping[str, Mapping[str, float]], x_label: str, y_label: str) -> Drawing:
    """Columns side by side: group -> category -> value; a colour a group."""
    if not groups:
        return Drawing()
    frame = Frame()
    names = list(next(iter(groups.values())))
    up = svg.linear([0.0, *(v for values in groups.values() for v in values.values())], *frame.up)
    start, stop = frame.across
    share = (stop - start) / len(names)
    width = 0.8 * share / len(groups)
    parts = [frame.vertical(up, y_label), frame.categories(names, x_label)]
    for number, values in enumerate(groups.values()):
        for place, name in enumerate(names):
            top, floor = up.place(values[name]), up.place(0.0)
            x = start + (place + 0.1) * share + number * width
            parts.append(svg.bar(x, top, width, floor - top, svg.colour(number)))
    return Drawing(parts, f"{y_label} by {x_label}", list(groups))


def _finite(series: Series) -> Series:
    pairs = zip(series.x, series.y, strict=True)
    kept = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    return Series(series.name, [x for x, _ in kept], [y for _, y in kept])
