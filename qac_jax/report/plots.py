"""Plots by matplotlib as SVG: lines, bars and heat maps; None without it."""

from __future__ import annotations

import functools
import importlib
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qac_jax import extras, progress
from qac_jax.errors import short
from qac_jax.evaluation.similarity import Similarity
from qac_jax.report import tables


if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _LEGEND_LINE, _BAR = 420, 250, 20, 22  # in pixels
_CHARACTER = 6.6  # width of a character of 12 pixels, on average
_MAX_POINTS, _MAX_NAME = 400, 18
_DOTS = 10  # fewer points than this are shown
_INK, _SOFT, _EDGE, _STRONG, _LIGHT = "#1d2329", "#5b6672", "#d8dee4", "#084594", "#ffffff"
_SERIES = (
    *("#1f6fb4", "#d9622b", "#2f8f5b", "#8d4fb0"),
    *("#b8860b", "#c03a5b", "#3b8f97", "#6b6f76"),
)
_STYLE: Any = {
    "axes.autolimit_mode": "round_numbers",
    "axes.axisbelow": True,
    "axes.edgecolor": _EDGE,
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.prop_cycle": f"cycler(color={list(_SERIES)})",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "grid.color": _EDGE,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # texts stay texts
    "svg.hashsalt": "qac_jax",  # the same bytes at every run
    "text.parse_math": False,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.{size}.size": 0 for axis in "xy" for size in ("major", "minor")},
}


class Series(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]


@functools.cache
def _library() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        progress.say(f"charts are left out: they need matplotlib; {extras.remedy('papers')}")


def _styled(draw: Callable[..., str | None]) -> Callable[..., str | None]:
    def drawn(*arguments: Any, **settings: Any) -> str | None:
        if _library() is None:
            return None
        with _library().rc_context(_STYLE):
            return draw(*arguments, **settings)

    return drawn


def _axes(width: float = _WIDTH, height: float = _HEIGHT) -> Axes:
    from matplotlib.figure import Figure

    return Figure((width / 72, height / 72), layout="constrained").add_subplot()


def _plot(axes: Axes, label: str, *, legend: bool = False) -> str:
    figure: Any = axes.figure
    names = axes.get_legend_handles_labels()[1] if legend else []
    if len(names) > 1:
        width, height = figure.get_size_inches() * 72
        columns = max(1, int(width / (50 + _CHARACTER * max(map(len, names)))))
        figure.set_size_inches(width / 72, (height + _LEGEND_LINE * -(-len(names) // columns)) / 72)
        figure.legend(
            loc="outside lower left", ncols=columns, frameon=False, labelcolor=_INK,
            handlelength=1, borderpad=0,
        )  # fmt: skip
    written, empty = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font does not have
        figure.savefig(written, format="svg", metadata=empty)
    drawn = written.getvalue()
    drawn = re.sub(r'="([\d.]+)pt"', r'="\1"', drawn[drawn.index("<svg") :])
    return drawn.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


@_styled
def lines(
    series: Sequence[Series], x_label: str, y_label: str, *, reference: float | None = None
) -> str | None:
    """Several lines over one another; `reference` is a dashed line at this height."""
    axes, drawn = _axes(), False
    for name, across, up in series:
        x, y = np.asarray(across, float), np.asarray(up, float)
        there = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        there = there[:: max(1, len(there) // _MAX_POINTS)]
        if len(there):
            marker, drawn = "o" if len(there) < _DOTS else "", True
            axes.plot(x[there], y[there], marker=marker, label=name, clip_on=False)
    if not drawn:
        return None
    if reference is not None:
        axes.axhline(reference, color=_SOFT, linewidth=1.2, linestyle=(0, (5, 4)))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    return _plot(axes, f"{y_label} by {x_label}", legend=True)


@_styled
def bars(rows: Sequence[tuple[str, float, str]], label: str) -> str | None:
    """Horizontal bars: (name, value, the value as it is written)."""
    if not rows:
        return None
    axes, places = _axes(height=12 + _BAR * len(rows)), range(len(rows))
    drawn = axes.barh(places, [value for _, value, _ in rows], 0.65, color=_SERIES[0])
    axes.bar_label(drawn, [written for _, _, written in rows], padding=5, color=_SOFT)
    axes.set_yticks(places, [short(name, _MAX_NAME) for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.25 * max(value for _, value, _ in rows) or 1)
    axes.set_xticks([])
    axes.grid(False)
    return _plot(axes, label)


@_styled
def heatmap(
    columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], label: str
) -> str | None:
    """Values as percentages, shaded from the lowest to the highest of their column."""
    from matplotlib.patches import Rectangle

    left = 24 + _CHARACTER * max(map(len, rows))
    top = 24 + 0.75 * _CHARACTER * max(map(len, columns))
    axes = _axes(left + 54 * len(columns) + top, top + 26 * len(rows) + 12)
    for x, column in enumerate(zip(*rows.values(), strict=True)):
        known = [value for value in column if value is not None]
        low, span = min(known), max(known) - min(known)
        for y, value in enumerate(column):
            shade = 0.0 if value is None else (value - low) / span if span else 1.0
            fill: dict[str, Any] = {"facecolor": _STRONG, "alpha": 0.04 + 0.96 * shade}
            if value is None:
                fill = {"facecolor": "none", "edgecolor": _EDGE}
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, **fill))
            colour = _LIGHT if shade > 0.65 else _INK
            axes.text(x, y, tables.percent(value), color=colour, ha="center", va="center")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="left", color=_INK)
    axes.set_yticks(range(len(rows)), rows, color=_INK)
    axes.grid(False)
    return _plot(axes, label)


def similarity(similarities: Mapping[str, Similarity]) -> str | None:
    """PAIR's Figure 4: s(p⁺, p⁻) over the negatives' ranks, one line an encoder.

    Encoders' scores have scales of their own, so each is drawn relative to its s(p⁺, q), which is
    the dashed line at 0: below it a negative is farther from the positive passage than the query.
    """
    series = []
    for name, measured in similarities.items():
        ranks = [r for r, value in enumerate(measured.by_rank, 1) if value is not None]
        values = [v - measured.to_query for v in measured.by_rank if v is not None]
        series.append(Series(name, ranks, values))
    across, up = "rank of the negative (dashed: the query)", "s(p⁺, p⁻) − s(p⁺, q)"
    return lines(series, across, up, reference=0.0)
