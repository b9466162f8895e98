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


def read(source: Source) -> Iterator[Document]:
    text = source.text(_declared)
    parsed = _parsed(text)
    if parsed.left_open and not any(body for _, _, body in parsed.headed()):
        parsed = _parsed(text, NEVER_READ)  # <nav> without an end would hide the whole page
    meta = {"url": parsed.url, "anchors": parsed.anchors, "phrases": parsed.phrases}
    headed = [Headed(*part) for part in parsed.headed()]
    yield page(source, " ".join("".join(parsed.title).split()), headed, meta)


def _parsed(text: str, ignored: frozenset[str] | None = None) -> Page:
    parser = Page(ignored)
    try:
        parser.feed(text)
        parser.close()
    except AssertionError as error:  # what Python's parser raises for <![broken declarations
        raise NotRead("malformed HTML", str(error)) from None
    return parser


def _declared(head: bytes) -> str:
    match = _CHARSET.search(head)
    return match[1].decode("ascii", "replace") if match else ""


FORMAT = PageFormat((".html", ".htm", ".xhtml"), read)
