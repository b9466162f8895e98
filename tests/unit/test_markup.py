"""Markup: what is text stays text, and pictures of their own are whole."""

from __future__ import annotations

from xml.etree import ElementTree

from qac_jax.report import plots
from qac_jax.report.markup import Markup, element, join
from qac_jax.report.plots import Series


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b & c") == "<p>a &lt; b &amp; c</p>"
    assert element("p", element("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert join(["<", Markup("<i></i>")]) == "&lt;<i></i>"
    assert element("a", "x", title='"<&', class_="note") == (
        '<a title="&quot;&lt;&amp;" class="note">x</a>'
    )


def test_attributes_are_written_as_names_of_svg() -> None:
    assert element("rect", x=1.25, fill_opacity="0.5", class_=None) == (
        '<rect x="1.2" fill-opacity="0.5"/>'
    )
    assert element("td") == "<td></td>", "only shapes close themselves"


def test_a_file_has_its_legend_and_its_colours() -> None:
    names = [f"system <{number}>" for number in range(9)]
    drawing = plots.lines([Series(name, [0, 1], [0, 1]) for name in names], "x", "y", reference=2)
    picture = ElementTree.fromstring(drawing.file())
    texts = {node.text: node for node in picture.iter() if node.tag.endswith("}text")}
    assert set(names) <= set(texts)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for name in names:
        node = texts[name]
        assert drawing.height < float(node.attrib["y"]) < height
        assert float(node.attrib["x"]) + 6 * len(name) < width
    style = next(node.text or "" for node in picture.iter() if node.tag.endswith("}style"))
    assert ".c7" in style and "prefers-color-scheme: dark" in style


def test_columns_stand_beside_one_another() -> None:
    groups = {"a": {"1": 0.5, "2": 0.25}, "b": {"1": 0.0, "2": 1.0}}
    picture = ElementTree.fromstring(plots.columns(groups, "rank", "share").figure())
    bars = [node.attrib for node in picture.iter("rect")]
    heights = [float(bar["height"]) for bar in bars]
    assert heights[0] == 2 * heights[1] and heights[2] == 0 and heights[3] == 2 * heights[0]
    first, second = float(bars[0]["x"]), float(bars[2]["x"])
    assert second - first == float(bars[0]["width"]), "of one category"
