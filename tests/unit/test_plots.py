"""Plots: what is drawn stands where the numbers say."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from qac_jax.report import plots
from qac_jax.report.plots import Series
from qac_jax.report.svg import Drawing, Frame, logarithmic, ticks


def svg(drawing: Drawing) -> ElementTree.Element:
    found = ElementTree.fromstring(drawing.figure()).find("svg")
    assert found is not None
    return found


def points(element: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in element.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.037, 0.041), (-3, 7.2), (12, 12), (0, 0), (1e-7, 3e-4), (5, 9e6)]
)
def test_ticks_are_round_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 9
    steps = {round(b - a, 12) for a, b in zip(found, found[1:], strict=False)}
    assert len(steps) == 1
    step = steps.pop()
    assert round(step / 10 ** math.floor(math.log10(step)), 6) in (1, 2, 2.5, 5)


def test_lines_go_through_their_points() -> None:
    drawing = svg(
        plots.lines([Series("a", [0, 5, 10], [0, 1, 4]), Series("b", [0], [2])], "x", "y")
    )
    first, second = drawing.findall("polyline")
    (x0, y0), (x1, y1), (x2, y2) = points(first)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert (y0 - y2) == pytest.approx(4 * (y0 - y1), abs=0.5), "up is more"
    assert "c0" in first.attrib["class"] and "c1" in second.attrib["class"]
    assert len(drawing.findall("circle")) == 1, "a single point is a dot"
    for x, y in points(first):
        assert 0 <= x <= Frame.width and 0 <= y <= Frame.height


def test_a_logarithmic_axis() -> None:
    drawing = svg(plots.lines([Series("a", [1, 10, 100], [1, 2, 3])], "ms", "y", log_x=True))
    (polyline,) = drawing.findall("polyline")
    (x0, _), (x1, _), (x2, _) = points(polyline)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)


def test_two_logarithmic_axes() -> None:
    series = [Series("a", [1, 10, 100], [0.1, 1, 10])]
    drawing = svg(plots.lines(series, "ms", "y", log_x=True, log_y=True))
    (polyline,) = drawing.findall("polyline")
    (_, y0), (_, y1), (_, y2) = points(polyline)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1, 100_000, [1, 10, 100, 1000, 10_000, 100_000]), (0.3, 1.8, [0.2, 0.5, 1, 2]), (5, 5, None)],
)
def test_logarithmic_ticks_enclose(low: float, high: float, expected: list[float] | None) -> None:
    scale = logarithmic([low, high], 0, 100)
    assert scale.ticks[0] <= low and scale.ticks[-1] >= high
    if expected is not None:
        assert list(scale.ticks) == pytest.approx(expected)
    assert scale.place(scale.ticks[0]) == 0 and scale.place(scale.ticks[-1]) == pytest.approx(100)


def test_a_histogram_counts_shares() -> None:
    figure = plots.histogram([("few", [0.05, 0.15, 0.15, 0.95]), ("one", [0.5])], "v", bins=10)
    few, one = svg(figure).findall("polygon")
    floor = max(y for _, y in points(few))
    heights = [floor - y for _, y in points(few)]
    (highest,) = {round(floor - y, 1) for _, y in points(one) if y < floor}
    assert max(heights) == pytest.approx(highest / 2, abs=0.2), "two of four"
    assert "<span><i" in figure.figure() and "few</span>" in figure.figure()


def test_bars_and_names_are_escaped() -> None:
    drawing = svg(plots.bars([("a <b> & c", 2.0, "2 s"), ("d" * 30, 1.0, "1 s")], "time"))
    long, short = (float(bar.attrib["width"]) for bar in drawing.findall("rect"))
    assert long == pytest.approx(2 * short, abs=0.2)
    texts = [text.text for text in drawing.findall("text")]
    assert texts[0] == "a <b> & c" and texts[2] == "d" * 17 + "…"


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert plots.lines([], "x", "y").figure() == "" == plots.histogram([("none", [])], "x").figure()
    assert plots.bars([], "x").figure() == ""
    drawing = plots.lines([Series("a", [0, 1, 2], [1.0, float("nan"), 3.0])], "x", "y")
    assert "nan" not in drawing.figure()
    assert len(points(svg(drawing).findall("polyline")[0])) == 2
    assert plots.lines([Series("a", [0], [float("inf")])], "x", "y").figure() == ""


def test_long_lines_are_thinned() -> None:
    steps = list(range(100_000))
    drawing = plots.lines([Series("loss", steps, [s % 7 for s in steps])], "step", "loss")
    assert len(points(svg(drawing).findall("polyline")[0])) <= 800


def test_small_numbers_fit_beside_the_axis() -> None:
    drawing = plots.lines([Series("lr", [0, 1], [0, 0.001])], "step", "learning rate")
    labels = re.findall(r'class="end"[^>]*>([^<]*)<', drawing.figure())
    assert "2.5e-4" in labels and max(map(len, labels)) <= 7
