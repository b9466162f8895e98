"""SVG: scales, axes, marks and legends, which all plots of this package are made of.

Colours are classes (`c0` … `c7`) whose rules are in `assets/report/plot.css`, for light and dark.
A plot is drawn into a page, which has these rules, or into a file of its own, which includes them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import qac_jax
from qac_jax.progress import human
from qac_jax.report.markup import Markup, element, join


ASSETS = Path(qac_jax.__file__).parent / "assets" / "report"
COLOURS = 8
# Width of a character of 12 pixels, on average; height of a line.
CHARACTER, LINE = 6.6, 18


class Scale(NamedTuple):
    """How values become coordinates along one axis, and which values are written beside it."""

    ticks: Sequence[float]
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


def linear(values: Iterable[float], start: float, stop: float, count: int = 5) -> Scale:
    """From `start` to `stop`, from the tick below all values to the tick above them."""
    values = list(values)
    marks = ticks(min(values), max(values), count)
    low, high = marks[0], marks[-1]
    return Scale(marks, lambda value: start + (stop - start) * (value - low) / (high - low))


def logarithmic(values: Iterable[float], start: float, stop: float) -> Scale:
    """The same for positive values: ticks at powers of 10, and at 2 and 5 where these are few."""
    values = list(values)
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for factors in ((1,), (1, 2, 5)):
        marks = [factor * 10.0**power for power in powers for factor in factors]
        first = max(i for i, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
        last = min(i for i, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
        marks = marks[first : max(last, first + 1) + 1]
        if len(marks) > 3:
            break
    base, span = marks[0], math.log10(marks[-1] / marks[0])
    return Scale(marks, lambda value: start + (stop - start) * math.log10(value / base) / span)


def number(value: float) -> str:
    """A tick's label, short enough for the space beside the axis: 2.5e-4, 12k."""
    if abs(value) >= 10_000:
        return human(value)
    if 0 < abs(value) < 0.01:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"


def colour(series: int) -> str:
    """The class of a series; after the last colour comes the first one again."""
    return f"c{series % COLOURS}"


# Marks


def text(x: float, y: float, content: str, *classes: str, rotate: int = 0) -> Markup:
    """Text at a place: `start` of it, or with the class `middle` or `end` that part of it."""
    return element(
        "text",
        content,
        class_=" ".join(classes) or None,
        x=float(x),
        y=float(y),
        transform=f"rotate({rotate} {x:.1f} {y:.1f})" if rotate else None,
    )


def line(points: Iterable[tuple[float, float]], *classes: str) -> Markup:
    return element("polyline", class_=" ".join(("line", *classes)), points=_points(points))


def area(points: Iterable[tuple[float, float]], *classes: str) -> Markup:
    return element("polygon", class_=" ".join(("area", *classes)), points=_points(points))


def dot(x: float, y: float, title: str, *classes: str) -> Markup:
    """A dot that shows its title when it is pointed at."""
    named = element("title", title)
    return element("circle", named, class_=" ".join(("dot", *classes)), cx=x, cy=y, r=3)


def bar(x: float, y: float, width: float, height: float, *classes: str) -> Markup:
    return element(
        "rect",
        class_=" ".join(("bar", *classes)),
        x=float(x), y=float(y), width=float(width), height=float(height), rx=2,
    )  # fmt: skip


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


# Axes


@dataclasses.dataclass(frozen=True)
class Frame:
    """The drawing's size and the margins of its axes. At the width of a phone it can be read."""

    width: int = 420
    height: int = 250
    left: int = 60
    right: int = 10
    top: int = 10
    bottom: int = 42

    @property
    def across(self) -> tuple[float, float]:
        """Where the horizontal axis starts and stops."""
        return float(self.left), float(self.width - self.right)

    @property
    def up(self) -> tuple[float, float]:
        """Where the vertical axis starts, at the bottom, and stops."""
        return float(self.height - self.bottom), float(self.top)

    def horizontal(self, scale: Scale, label: str) -> Markup:
        """The axis below the drawing: grid lines, ticks and a name."""
        floor, top = self.up
        parts = []
        for value in scale.ticks:
            x = scale.place(value)
            # The middle of the last number would be too far to the right for the rest of it.
            anchor = "end" if x > self.width - 24 else "middle"
            parts += [
                element("path", class_="grid", d=f"M{x:.1f} {top:.1f}V{floor:.1f}"),
                text(x, floor + 15, number(value), anchor),
            ]
        return join([*parts, self._name_below(label)])

    def categories(self, names: Sequence[str], label: str) -> Markup:
        """The same for names, each in the middle of its share of the width."""
        start, stop = self.across
        share = (stop - start) / max(len(names), 1)
        floor, _ = self.up
        parts = [
            text(start + share * (place + 0.5), floor + 15, name, "middle")
            for place, name in enumerate(names)
        ]
        return join([*parts, self._name_below(label)])

    def vertical(self, scale: Scale, label: str) -> Markup:
        """The axis to the left."""
        start, stop = self.across
        parts = []
        for value in scale.ticks:
            y = scale.place(value)
            parts += [
                element("path", class_="grid", d=f"M{start:.1f} {y:.1f}H{stop:.1f}"),
                text(start - 6, y + 4, number(value), "end"),
            ]
        middle = sum(self.up) / 2
        return join([*parts, text(11, middle, label, "middle", "name", rotate=-90)])

    def _name_below(self, label: str) -> Markup:
        return text(sum(self.across) / 2, self.height - 8, label, "middle", "name")


# Drawings


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A finished plot: what is drawn, its size, what it shows in words, and its series' names."""

    parts: Sequence[Markup] = ()
    label: str = ""
    legend: Sequence[str] = ()
    width: float = Frame.width
    height: float = Frame.height

    def figure(self) -> Markup:
        """For a page that has the rules of plot.css; the legend is text of the page."""
        if not self.parts:
            return Markup()
        drawn = element("svg", *self.parts, **self._attributes(self.height))
        if len(self.legend) < 2:
            return element("figure", drawn)
        entries = (
            element("span", element("i", class_=colour(series)), name)
            for series, name in enumerate(self.legend)
        )
        return element("figure", drawn, element("figcaption", *entries))

    def file(self, zoom: float = 1.0) -> str:
        """A picture that needs nothing else."""
        legend, below = self._legend() if len(self.legend) > 1 else (Markup(), 0)
        drawn = element(
            "svg",
            element("style", Markup(rules())),
            element("rect", class_="ground", width="100%", height="100%"),
            *self.parts,
            legend,
            xmlns="http://www.w3.org/2000/svg",
            **self._attributes(self.height + below, zoom),
        )
        return drawn + "\n"

    def _attributes(self, height: float, zoom: float = 1.0) -> dict[str, object]:
        return {
            "viewBox": f"0 0 {self.width:.0f} {height:.0f}",
            "width": round(zoom * self.width),
            "height": round(zoom * height),
            "role": "img",
            "aria_label": self.label,
        }

    def _legend(self) -> tuple[Markup, int]:
        """Rows of names below the drawing, and their height."""
        parts, x, y = [], 12.0, self.height + 12
        for series, name in enumerate(self.legend):
            width = 40 + CHARACTER * len(name)
            if x > 12 and x + width > self.width:
                x, y = 12.0, y + LINE
            parts += [bar(x, y - 10, 12, 12, colour(series)), text(x + 18, y, name, "name")]
            x += width
        return join(parts), int(y - self.height) + 8


@functools.cache
def rules() -> str:
    """The style of plots."""
    return (ASSETS / "plot.css").read_text(encoding="utf-8").strip()
