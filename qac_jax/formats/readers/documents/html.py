"""A folder of HTML files: title, headings, text, and links with their labels.

One file is one document, its path below the folder its id.
"""

from __future__ import annotations

from html.parser import HTMLParser

from qac_jax.formats.documents import Document, Section
from qac_jax.formats.lines import folder_format


NEVER_READ = frozenset({"script", "style", "noscript", "template", "svg"})
_IGNORED = NEVER_READ | {"nav"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_EMPHASIS = {"b", "strong", "i", "em"}
_BLOCKS = _HEADINGS | {
    "p", "div", "li", "br", "tr", "table", "section", "article", "blockquote", "pre", "dd", "dt",
    "ul", "ol", "dl", "hr", "header", "footer", "main", "aside", "figure", "figcaption", "td", "th",
}  # fmt: skip


def parse_html(name: str, text: str) -> Document:
    parser = Page()
    parser.feed(text)
    parser.close()
    sections = tuple(Section(heading, body) for heading, body in parser.finished() if body)
    meta = {
        key: value
        for key, value in (("anchors", parser.anchors), ("phrases", parser.phrases))
        if value
    }
    return Document(name, _joined(parser.title), sections, meta=meta)


class Page(HTMLParser):
    """What a page holds. `ignored`: elements whose text is left out."""

    def __init__(self, ignored: frozenset[str] | None = None) -> None:
        super().__init__(convert_charrefs=True)
        self._leave_out = _IGNORED if ignored is None else ignored
        self.url = ""
        self.title: list[str] = []
        self.anchors: list[list[str]] = []
        self.phrases: list[str] = []
        self._sections: list[tuple[str, list[str]]] = [("", [])]
        self._levels = [0]
        self._level = 0
        self._ignored: list[str] = []
        self._in_title = False
        self._heading: list[str] | None = None
        self._link: tuple[str, list[str]] | None = None
        self._emphasis: list[str] | None = None

    def finished(self) -> list[tuple[str, str]]:
        return [
            (heading, "\n".join(filter(None, (_joined([t]) for t in "".join(parts).split("\n")))))
            for heading, parts in self._sections
        ]

    def headed(self) -> list[tuple[int, str, str]]:
        """(level, heading, text) of every section; level 0 is what stands before any heading."""
        pairs = zip(self._levels, self.finished(), strict=True)
        return [(level, heading, text) for level, (heading, text) in pairs]

    def close(self) -> None:
        super().close()
        if self._heading is not None:
            self._end_heading()

    def _end_heading(self) -> None:
        self._sections.append((_joined(self._heading or []), []))
        self._levels.append(self._level)
        self._heading = None

    @property
    def left_open(self) -> bool:
        """Whether the page ended inside an element that is left out."""
        return bool(self._ignored)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS and tag != "br":
            self._in_title = False
            if self._heading and _joined(self._heading):
                self._end_heading()  # one without an end would take in all that follows
        if tag == "title" and not self.title:
            self._in_title = True
        elif tag in self._leave_out:
            self._ignored.append(tag)
        elif tag in _HEADINGS:
            self._heading, self._level = [], int(tag[1])
        elif tag == "a" and (target := dict(attrs).get("href")):
            self._link = (target, [])
        elif tag in _EMPHASIS:
            self._emphasis = []
        elif tag in ("link", "meta") and not self.url:
            self.url = _own_address(dict(attrs))
        if tag in _BLOCKS and not self._ignored:
            self._sections[-1][1].append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._ignored:
            # Whatever was opened inside it ends with it.
            del self._ignored[self._ignored.index(tag) :]
        elif tag in _HEADINGS and self._heading is not None:
            self._end_heading()
        elif tag == "a" and self._link:
            label = _joined(self._link[1])
            if label:
                self.anchors.append([self._link[0], label])
            self._link = None
        elif tag in _EMPHASIS and self._emphasis is not None:
            phrase = _joined(self._emphasis)
            if phrase and phrase not in self.phrases:
                self.phrases.append(phrase)
            self._emphasis = None
        if tag in _BLOCKS and not self._ignored:
            self._sections[-1][1].append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        if self._in_title or self._ignored:
            return
        if self._heading is not None:
            self._heading.append(data)
            return
        # Line ends in the source are mere spaces; blocks alone begin new lines.
        self._sections[-1][1].append(" ".join(data.split("\n")))
        for open_text in (self._link and self._link[1], self._emphasis):
            if open_text is not None:
                open_text.append(data)


def _own_address(attributes: dict[str, str | None]) -> str:
    """The page's address, by <link rel="canonical"> or <meta property="og:url">."""
    if (attributes.get("rel") or "").lower() == "canonical":
        return attributes.get("href") or ""
    return (attributes.get("content") or "") if attributes.get("property") == "og:url" else ""


def _joined(parts: list[str]) -> str:
    return " ".join("".join(parts).split())


FORMAT = folder_format(parse_html, (".html", ".htm", ".xhtml"))
