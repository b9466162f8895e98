"""Elements of HTML and SVG as text. Whatever is not markup already is escaped.

element("p", "a < b", class_="note")        # <p class="note">a &lt; b</p>
element("ul", *(element("li", item) for item in items))
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


# Elements without content: XML closes them itself.
_EMPTY = frozenset(("circle", "path", "polygon", "polyline", "rect"))


class Markup(str):
    """Text that is HTML or SVG already."""


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """One element. `class_` stands for class, `text_anchor` for text-anchor; None is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY and not content:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{join(content)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """The parts one after the other; plain text among them is escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(p, quote=False) for p in parts))


def _value(value: object) -> str:
    """Coordinates have one decimal: a tenth of a pixel."""
    return f"{value:.1f}" if isinstance(value, float) else str(value)
