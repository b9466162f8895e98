"""Web crawls: the HTML pages of WARC files, and the texts of Common Crawl's WET files.

Answers other than 200 and contents that are not text are left out and counted. A file stays whole:
crawls come in thousands of them. The id is the record's, the address and, in WET files, the
languages that the crawl states stand in the passages as `url` and `languages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats import encodings
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
from qac_jax.formats.files import expand, share_out
from qac_jax.formats.pages import NotRead
from qac_jax.formats.readers.pages import html
from qac_jax.formats.registry import NO, SURE, Sample
from qac_jax.formats.warc_records import MARK, Record, records, response, unpacked


_SUFFIXES = (".warc", ".wet")
_TEXT, _PAGES = "conversion", ("response", "resource")
_MARKUP, _PLAIN = ("text/html", "application/xhtml+xml"), ("text/plain",)


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    files = expand(path, _SUFFIXES)
    return share_out(files, count or min(default_count(files), len(files)), cut=False)


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    for piece in shard.pieces:
        for record in records(piece.file, (_TEXT, *_PAGES), bad):
            try:
                document = _conversion(record) if record.kind == _TEXT else _page(record, bad)
                taken = document is not None and accepted(document, bad)
            except BadRecord as error:
                bad.add(error, Place(piece.file))
                continue
            if document is not None and taken:
                yield document


def _conversion(record: Record) -> Document:
    try:
        text = record.content.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"record {record.number}: not UTF-8 at byte {error.start}") from None
    stated = record.headers.get("warc-identified-content-language", "")
    languages = [part for part in stated.split(",") if part]
    return _document(record, "", [Section("", text)], {"languages": languages})


def _page(record: Record, bad: BadLines) -> Document | None:
    """The page of a response; None for what is left out."""
    kind, body = record.headers.get("content-type", ""), record.content
    if record.kind == "response":
        answer = response(record)
        if answer.status != 200:
            bad.leave_out("answers other than 200")
            return None
        kind = answer.headers.get("content-type", "")
        unpacked_body = unpacked(answer.body, answer.headers.get("content-encoding", ""))
        if unpacked_body is None:
            bad.leave_out("pages packed in a way that is not read")
            return None
        body = unpacked_body
    media, _, parameters = kind.partition(";")
    media = media.strip().lower()
    if media not in (*_MARKUP, *_PLAIN) or encodings.is_binary(body):
        bad.leave_out("contents that are not text")
        return None
    if "warc-truncated" in record.headers:
        bad.keep("pages that the crawl cut off")
    _, _, charset = parameters.lower().partition("charset=")
    declared = charset.split(";")[0].strip(" \"'") or html.declared(body[:4096])
    text = encodings.decoded(body, declared).text.replace("\r\n", "\n").replace("\0", " ")
    if media in _PLAIN:
        return _document(record, "", [Section("", text)])
    try:
        parsed = html.parsed(text)
    except (NotRead, RecursionError):
        raise BadRecord(f"record {record.number}: malformed HTML") from None
    sections = [Section(heading, part) for _, heading, part in parsed.headed() if part]
    about = {"anchors": parsed.anchors, "phrases": parsed.phrases}
    return _document(record, " ".join("".join(parsed.title).split()), sections, about)


def _document(
    record: Record, title: str, sections: list[Section], about: Mapping[str, Any] | None = None
) -> Document:
    meta = {"url": record.url, **(about or {})}
    return Document(
        id=record.id,
        title=title,
        sections=tuple(sections),
        source="crawl",
        meta={key: value for key, value in meta.items() if value},
        place=Place(record.file),
    )


def recognise(sample: Sample) -> int:
    return SURE if sample.head.startswith(MARK.decode()) else NO


FORMAT = DocumentFormat(share, read, recognise=recognise)
