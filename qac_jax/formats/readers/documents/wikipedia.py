"""Wikipedia's XML dumps (pages-articles), read as a stream: articles only.

Redirects and pages outside the article namespace are left out and counted. A dump that comes in
many files is shared out file by file; multistream dumps with their index beside them are cut inside
a file as well (`formats/multistream.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from qac_jax.errors import DataError
from qac_jax.formats import multistream
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Pieces,
    Section,
    Shard,
    accepted,
    default_count,
)
from qac_jax.formats.files import Piece, expand, longest_line, share_out, too_long
from qac_jax.formats.readers import wikitext


_FILE, _CATEGORY = "6", "14"
_PART = re.compile(r"\.xml-p\d+p\d+(?=\.|$)")
_WANTED = {"title", "ns", "id", "text", "namespace"}


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    files = expand(path, _suffixes(path))
    count = count or default_count(files)
    if any(map(multistream.index_of, files)):
        return multistream.share_out(files, count)
    return share_out(files, count, cut=False)


def _suffixes(path: str) -> tuple[str, ...]:
    """.xml, and in a folder the endings of parts such as ….xml-p1p41242."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return (".xml", *dict.fromkeys(m[0] for m in map(_PART.search, names) if m))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    for piece in shard.pieces:
        dump = _Dump(piece)
        for page in dump.pages():
            place = Place(dump.name, page.line)
            if page.redirect:
                bad.leave_out("redirects")
            elif page.fields.get("ns", "0") != "0":
                bad.leave_out("pages that are not articles")
            else:
                try:
                    document = _document(page, dump.namespaces, place)
                    taken = document is not None and accepted(document, bad)
                except BadRecord as error:
                    bad.add(error, place)
                    continue
                if document is None:
                    bad.leave_out("articles without prose")
                elif taken:
                    yield document


def _document(page: _Page, namespaces: Mapping[str, str], place: Place) -> Document | None:
    fields = page.fields
    parsed = wikitext.parse(
        fields.get("text", ""),
        files={namespaces.get(_FILE, "").lower()} - {""},
        categories={namespaces.get(_CATEGORY, "").lower()} - {""},
    )
    meta: dict[str, Any] = {
        "anchors": [list(anchor) for anchor in parsed.anchors],
        "links": parsed.links,
        "phrases": parsed.phrases,
        "categories": parsed.categories,
        "see_also": parsed.see_also,
    }
    document = Document(
        id=fields.get("id", ""),
        title=fields.get("title", ""),
        sections=tuple(Section(*section) for section in parsed.sections),
        source="wikipedia",
        meta={key: value for key, value in meta.items() if value},
        place=place,
    )
    if document.id and fields.get("text", "").strip() and not document.sections:
        return None
    return document


@dataclass
class _Page:
    line: int
    fields: dict[str, str] = field(default_factory=dict)
    redirect: bool = False


class _Dump:
    """Pages of a dump or of a piece of it, one at a time.

    `name`: the file; a piece's lines are counted from its beginning, which the name then says.
    """

    def __init__(self, piece: Piece) -> None:
        self.name = f"{piece.file} from byte {piece.start}" if piece.start else piece.file
        self._piece = piece
        self.namespaces: dict[str, str] = {}
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._path: list[str] = []
        self._page: _Page | None = None
        self._ready: list[_Page] = []
        self._text: list[str] | None = None
        self._length, self._limit = 0, longest_line()
        self._key = ""
        self._before = 0  # lines of the head, which a piece further down lacks

    def pages(self) -> Iterator[_Page]:
        try:
            if self._piece.start:
                head = multistream.head(self._piece.file)
                self._parser.Parse(head)
                self._before = head.count(b"\n")
            for block in multistream.blocks(self._piece):
                self._parser.Parse(block)
                yield from self._ready
                self._ready.clear()
            self._parser.Parse(b"" if self._piece.stop is None else multistream.END, True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise DataError(
                f"not a whole XML dump: {reason}; fetch the file again",
                file=self.name,
                line=max(1, error.lineno - self._before),
            ) from error
        yield from self._ready

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if name == "page":
            self._page = _Page(self._parser.CurrentLineNumber - self._before)
        elif name == "redirect" and self._page:
            self._page.redirect = True
        elif name in _WANTED:
            self._text, self._length, self._key = [], 0, attributes.get("key", "")

    def _data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)
            self._length += len(data)
            if self._length > self._limit:
                line = self._parser.CurrentLineNumber - self._before
                raise too_long(self.name, self._limit, line, "a text")

    def _end(self, name: str) -> None:
        self._path.pop()
        text, self._text = "".join(self._text or ()), None
        if name == "page" and self._page:
            self._ready.append(self._page)
            self._page = None
        elif name == "namespace":
            self.namespaces[self._key] = text
        elif name in _WANTED and self._page:
            # Revisions and contributors have ids too; the page's comes first.
            self._page.fields.setdefault(name, text)


FORMAT = DocumentFormat(share, read)
