"""One HTML page that stands alone: no scripts, no fonts, no network; light, dark, narrow, paper."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence

from qac_jax.report import svg
from qac_jax.report.markup import Markup, element, join
from qac_jax.report.svg import Drawing


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page: (heading, content) one after the other, with links to each at the top."""
    anchors = [(name, re.sub(r"\W+", "-", name.lower())) for name, _ in sections]
    template = (svg.ASSETS / "page.html").read_text(encoding="utf-8")
    style = (svg.ASSETS / "page.css").read_text(encoding="utf-8")
    return string.Template(template).substitute(
        title=join([title]),
        style=style + svg.rules(),
        links=join(element("a", name, href=f"#{anchor}") for name, anchor in anchors),
        sections=join(
            element("section", element("h2", name), text, id=anchor)
            for (name, anchor), (_, text) in zip(anchors, sections, strict=True)
        ),
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, rich: bool = False) -> Markup:
    """Numbers to the right, words to the left. rich: `**best**` and ` ^marks` are shown as such."""
    words = [all(not _is_number(row[i]) for row in rows) for i in range(len(header))]

    def line(cells: Sequence[str], tag: str) -> Markup:
        shown = (_rich(cell) if rich and tag == "td" else cell for cell in cells)
        return element(
            "tr",
            *(
                element(tag, cell, class_="word" if word else None)
                for cell, word in zip(shown, words, strict=True)
            ),
        )

    head = element("thead", line(header, "th"))
    body = element("tbody", *(line(row, "td") for row in rows))
    return scroll(element("table", head, body))


def _is_number(cell: str) -> bool:
    return bool(re.match(r"[*<+\-−–]*\d", cell)) or cell == "–"


def _rich(cell: str) -> Markup:
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", join([cell]))
    return Markup(re.sub(r" \^(\w+)$", r"<sup>\1</sup>", text))


def part(title: str, *content: str) -> Markup:
    return join([element("h3", title), *content])


def note(text: str) -> Markup:
    return element("p", text, class_="note")


def beside(blocks: Iterable[str]) -> Markup:
    """Blocks beside one another as far as the page is wide enough."""
    content = join(blocks)
    return element("div", content, class_="beside") if content else content


def case(title: str, *content: str) -> Markup:
    """A sheet with one example on it."""
    return element("div", element("p", title), *content, class_="case")


def folded(title: str, *content: str) -> Markup:
    """Shown when it is clicked on."""
    return element("details", element("summary", title), *content)


def scroll(content: str) -> Markup:
    """What may be wider than the page."""
    return element("div", content, class_="scroll")


def side_by_side(drawings: Sequence[Drawing]) -> Markup:
    """Plots, as many in a row as the page is wide; empty ones are left out."""
    figures = [drawing.figure() for drawing in drawings if drawing.parts]
    return element("div", *figures, class_="plots") if figures else Markup()
