"""HTML, as a folder of pages, and web crawls: the pages of WARC files, the texts of WET files.

A page gives its title, sections of h1 to h6, and links with their labels. lxml tells where elements
begin and end, in a time linear in the page's length.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from lxml import etree

from qac_jax import extras
from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, DocumentFormat, Section, Shard, sharer
from qac_jax.formats.files import LONGEST_LINE, open_bytes
from qac_jax.formats.readers.folder import Headed, PageFormat, Source, decoded, is_binary, page
from qac_jax.formats.registry import NO, SURE


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

    def sections(self) -> tuple[Section, ...]:
        return tuple(Section(part.heading, part.text) for part in self.headed() if part.text)

    def size(self) -> int:
        return sum(len(part.text) for part in self.headed())

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag in _BLOCKS and tag != "br" and self._open.get("heading"):
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
            if self._open["heading"] or text.strip():
                self._open["heading"].append(text)
        else:
            # Line ends in the source are mere spaces; blocks alone begin new lines.
            self._sections[-1][2].append(text.replace("\n", " "))
            for parts in self._open.values():
                parts.append(text)

    def close(self) -> Self:
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


def _about(found: HtmlPage) -> dict[str, Any]:
    about = {"anchors": found.anchors, "phrases": list(found.phrases)}
    return {key: value for key, value in about.items() if value}


def _read_page(source: Source) -> Iterator[Document]:
    found = _main_part(source.text(_charset))
    yield page(source, found.title, found.headed(), {"url": found.url, **_about(found)})


# Crawls. Answers other than 200 and contents that are not text are left out and counted. A file
# stays whole: crawls come in thousands of them. The id is the record's, the address and, in WET
# files, the languages that the crawl states stand in the passages as `url` and `languages`.

_MARKUP, _PLAIN = ("text/html", "application/xhtml+xml"), "text/plain"


def _read_warc(shard: Shard, bad: BadLines) -> Iterator[Document]:
    for piece in shard.pieces:
        for record, content in _records(piece.file, bad):
            place = Place(piece.file)
            try:
                document = _crawled(record, content, place, bad)
            except BadRecord as error:
                bad.add(error, place)
                continue
            if document:
                yield document


def _records(path: str, bad: BadLines) -> Iterator[tuple[Any, bytes]]:
    """Conversions, responses and resources, and what they hold."""
    warc = extras.load("fastwarc.warc", "warc", "reading web crawls")
    kinds = warc.WarcRecordType
    wanted = kinds.conversion | kinds.response | kinds.resource
    with open_bytes(path) as file:
        if not file.peek(5).startswith(b"WARC/"):  # type: ignore[attr-defined]
            raise DataError("it does not begin with WARC/; expected a WARC file", file=path)
        options = {"record_types": wanted, "parse_http": False, "fsspec_args": False}
        try:
            for record in warc.ArchiveIterator(file, **options):
                if record.content_length > LONGEST_LINE:
                    bad.leave_out(f"records of more than {LONGEST_LINE:,} bytes")
                    continue
                content = record.reader.read()
                if len(content) < record.content_length:
                    raise OSError("it ends early")
                yield record, content
        except OSError as error:
            raise DataError(f"damaged ({error}); fetch the file again", file=path) from error


def _crawled(record: Any, content: bytes, place: Place, bad: BadLines) -> Document | None:
    """The document of a record; None for what is left out."""
    headers, kind = record.headers, record.headers.get("WARC-Type")
    if record.record_id is None:
        raise BadRecord("a record has no WARC-Record-ID")
    name = record.record_id.strip("<>").removeprefix("urn:uuid:")
    title = ""
    about: dict[str, Any] = {"url": headers.get("WARC-Target-URI", "").strip("<>")}
    if kind == "conversion":
        try:
            sections: tuple[Section, ...] = (Section("", content.decode()),)
        except UnicodeDecodeError as error:
            raise BadRecord(f"record {name} is not UTF-8 at byte {error.start}") from None
        stated = headers.get("WARC-Identified-Content-Language", "")
        about["languages"] = [part for part in stated.split(",") if part]
    else:
        answer = 200, headers.get("Content-Type", ""), content
        status, described, body = _http(name, content) if kind == "response" else answer
        media, _, parameters = described.partition(";")
        media = media.strip().lower()
        if status != 200 or body is None:
            packed = "pages packed in a way that is not read"
            bad.leave_out("answers other than 200" if status != 200 else packed)
            return None
        if media not in (*_MARKUP, _PLAIN) or is_binary(body):
            bad.leave_out("contents that are not text")
            return None
        if "WARC-Truncated" in headers:
            bad.kept["pages that the crawl cut off"] += 1
        _, _, stated = parameters.lower().partition("charset=")
        declared = stated.split(";")[0].strip(" \"'") or _charset(body[:4096])
        text = decoded(body, declared)[0].replace("\r\n", "\n").replace("\0", " ")
        if media == _PLAIN:
            sections = (Section("", text),)
        else:
            whole = _main_part(text)
            title, sections, about = whole.title, whole.sections(), about | _about(whole)
    meta = {key: value for key, value in about.items() if value}
    return Document(name, title, sections, (), "crawl", meta, place)


def _http(name: str, content: bytes) -> tuple[int, str, bytes | None]:
    """(status, Content-Type, body) of an answer; no body where it is packed or too long."""
    from fastwarc.warc import WarcRecord

    # Whatever the record states of itself, what a response holds is HTTP.
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    answer = WarcRecord.from_bytes(head.encode() + content + b"\r\n\r\n")
    try:
        answer.parse_http(auto_decode="all")
        status = answer.http_headers and answer.http_headers.status_code
        if not status or not content.startswith(b"HTTP/"):
            raise BadRecord(f"record {name} begins with {content[:20]!r}, not with HTTP/")
        body = answer.reader.read(LONGEST_LINE + 1)
    except OSError:
        return 200, "", None
    kind = answer.http_headers.get("Content-Type") or ""
    return status, kind, body if len(body) <= LONGEST_LINE else None


DOCUMENT_FORMATS = {
    "warc": DocumentFormat(
        sharer(".warc", ".wet", cut=False),
        _read_warc,
        recognise=lambda sample: SURE if sample.head.startswith("WARC/") else NO,
    )
}
PAGE_FORMATS = {"html": PageFormat((".html", ".htm", ".xhtml"), _read_page)}
