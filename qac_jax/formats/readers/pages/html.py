"""HTML: the sections of h1 to h6; scripts, styles and navigation go, links keep their labels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import Headed, NotRead, PageFormat, Source, page
from qac_jax.formats.readers.documents.html import NEVER_READ, Page


_CHARSET = re.compile(
    rb"""<(?:meta|\?xml)[^<>]{0,200}?(?:charset|encoding)\s*=\s*["']?([\w\-]+)""", re.I
)


_MAIN = re.compile(r"<(/?)main\b", re.IGNORECASE)
# A <main> that holds less of a page's text than this is not its main part.
_SHARE = 0.3
_IGNORED = NEVER_READ | {"nav", "footer", "form", "button", "select", "dialog", "menu"}


def read(source: Source) -> Iterator[Document]:
    found = parsed(source.text(declared))
    meta = {"url": found.url, "anchors": found.anchors, "phrases": found.phrases}
    headed = [Headed(*part) for part in found.headed()]
    yield page(source, " ".join("".join(found.title).split()), headed, meta)


def parsed(text: str) -> Page:
    """A page without what surrounds its main part; NotRead where it is malformed."""
    whole = _parsed(text)
    if whole.left_open and not _size(whole):
        return _parsed(text, NEVER_READ)  # <nav> without an end would hide the whole page
    if main := _main(text):
        body = _parsed(main)
        if _size(body) > _SHARE * _size(whole):
            # What stands around it is the same on every page of a site.
            body.title, body.url = whole.title, whole.url
            return body
    return whole


def _main(text: str) -> str:
    """From the first <main> to the last </main>; "" where there is none."""
    marks = [(match.start(), match[1]) for match in _MAIN.finditer(text)]
    begin = next((place for place, end in marks if not end), -1)
    stop = next((place for place, end in reversed(marks) if end), -1)
    return text[begin:stop] if 0 <= begin < stop else ""


def _size(page: Page) -> int:
    return sum(len(text) for _, _, text in page.headed())


def _parsed(text: str, ignored: frozenset[str] = _IGNORED) -> Page:
    parser = Page(ignored)
    try:
        parser.feed(text)
        parser.close()
    except AssertionError as error:  # what Python's parser raises for <![broken declarations
        raise NotRead("malformed HTML", str(error)) from None
    return parser


def declared(head: bytes) -> str:
    """The encoding that the beginning of a page states."""
    match = _CHARSET.search(head)
    return match[1].decode("ascii", "replace") if match else ""


FORMAT = PageFormat((".html", ".htm", ".xhtml"), read)
