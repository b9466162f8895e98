"""HTML in a folder of pages: title, sections of h1 to h6, links with their labels. lxml tells where
elements begin and end, in a time linear in the page's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lxml import etree

from qac_jax.formats.documents import Document
from qac_jax.formats.readers.folder import Headed, PageFormat, Source, page


_NEVER_READ = frozenset({"script", "style", "noscript", "template", "svg"})
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_EMPHASIS = {"b", "strong", "i", "em"}
_BLOCKS = _HEADINGS | {
    "p", "div", "li", "br", "tr", "table", "section", "article", "blockquote", "pre", "dd", "dt",
    "ul", "ol", "dl", "hr", "header", "footer", "main", "aside", "figure", "figcaption", "td", "th",
}  # fmt: skip
# What surrounds the text of a page in a folder of documents.
_AROUND = _NEVER_READ | {"nav", "footer", "form", "button", "select", "dialog", "menu"}

_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^<>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w\-]+)""", re.I
)
_MAIN = re.compile(r"<(/?)main\b", re.IGNORECASE)
# A <main> that holds less of a page's text than this is not its main part.
_SHARE = 0.3


class HtmlPage:
    """A page's content, filled by lxml's events. `ignored`: elements whose text is left out."""

    def __init__(self, ignored: frozenset[str]) -> None:
        self._leave_out = ignored
        self.url = self.title = ""
        self.anchors: list[list[str]] = []
        self.phrases: dict[str, None] = {}
        self._sections: list[tuple[int, str, list[str]]] = [(0, "", [])]
        self._level = self._ignored = 0  # of the open heading; elements that are left out
        self._target = ""
        # The texts of the open elements: title, heading, link and emphasis.
        self._open: dict[str, list[str]] = {}

    def headed(self) -> list[Headed]:
        """All sections; level 0 is what stands before any heading."""
        found = []
        for level, heading, parts in self._sections:
            lines = filter(None, map(_joined, "".join(parts).split("\n")))
            found.append(Headed(level, heading, "\n".join(lines)))
        return found

    def size(self) -> int:
        return sum(len(part.text) for part in self.headed())

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag in _BLOCKS and tag != "br" and _joined(*self._open.get("heading", ())):
            self._end_heading()  # one without an end would take in all that follows
        if tag in self._leave_out:
            self._ignored += 1
        elif tag == "title" and not (self.title or self._ignored):
            self._open["title"] = []
        elif tag in _HEADINGS:
            self._open["heading"], self._level = [], int(tag[1])
        elif tag == "a" and attributes.get("href"):
            self._open["link"], self._target = [], attributes["href"]
        elif tag in _EMPHASIS:
            self._open["emphasis"] = []
        elif tag in ("link", "meta") and not self.url:
            # <link rel="canonical"> or <meta property="og:url">
            if attributes.get("rel", "").lower() == "canonical":
                self.url = attributes.get("href", "")
            elif attributes.get("property") == "og:url":
                self.url = attributes.get("content", "")
        self._break(tag)

    def end(self, tag: str) -> None:
        if tag in self._leave_out:
            self._ignored -= 1
        elif tag == "title":
            self.title = _joined(*self._open.pop("title", [self.title]))
        elif tag in _HEADINGS and "heading" in self._open:
            self._end_heading()
        elif tag == "a" and (label := _joined(*self._open.pop("link", ()))):
            self.anchors.append([self._target, label])
        elif tag in _EMPHASIS and (phrase := _joined(*self._open.pop("emphasis", ()))):
            self.phrases[phrase] = None
        self._break(tag)

    def data(self, text: str) -> None:
        if "title" in self._open:
            self._open["title"].append(text)
        elif self._ignored:
            return
        elif "heading" in self._open:
            self._open["heading"].append(text)
        else:
            # Line ends in the source are mere spaces; blocks alone begin new lines.
            self._sections[-1][2].append(text.replace("\n", " "))
            for parts in self._open.values():
                parts.append(text)

    def close(self) -> HtmlPage:
        return self

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS and not self._ignored:
            self._sections[-1][2].append("\n")

    def _end_heading(self) -> None:
        self._sections.append((self._level, _joined(*self._open.pop("heading")), []))


def _joined(*parts: str) -> str:
    return " ".join("".join(parts).split())


def parsed(text: str, ignored: frozenset[str] = _NEVER_READ) -> HtmlPage:
    """A page or a part of one; whatever it declares, it is text already."""
    target: Any = HtmlPage(ignored)
    parser: Any = etree.HTMLParser(target=target, encoding="utf-8", huge_tree=True)
    parser.feed(text.replace("\0", " ").encode("utf-8", "replace"))
    return parser.close()


def _main_part(text: str) -> HtmlPage:
    """A page without what surrounds its main part."""
    whole = parsed(text, _AROUND)
    if not whole.size():
        return parsed(text)  # <nav> without an end would hide the whole page
    marks = [(match.start(), match[1]) for match in _MAIN.finditer(text)]
    begin = next((place for place, end in marks if not end), -1)
    stop = next((place for place, end in reversed(marks) if end), -1)
    if 0 <= begin < stop:
        body = parsed(text[begin:stop], _AROUND)
        if body.size() > _SHARE * whole.size():
            # What stands around it is the same on every page of a site.
            body.title, body.url = whole.title, whole.url
            return body
    return whole


def _charset(head: bytes) -> str:
    """The encoding that the beginning of a page states."""
    match = _CHARSET.search(head)
    return match[1].decode("ascii", "replace") if match else ""


def _read_page(source: Source) -> Iterator[Document]:
    found = _main_part(source.text(_charset))
    meta = {"url": found.url, "anchors": found.anchors, "phrases": list(found.phrases)}
    yield page(source, found.title, found.headed(), meta)


PAGE_FORMATS = {"html": PageFormat((".html", ".htm", ".xhtml"), _read_page)}
