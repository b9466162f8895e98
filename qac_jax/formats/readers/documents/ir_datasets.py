"""A collection of ir_datasets by name, such as msmarco-passage."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Section,
    Shard,
    accepted,
)
from qac_jax.formats.files import Piece
from qac_jax.formats.readers import named


WHAT = "the collection of ir_datasets"


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    # The collection is fetched here, at the first question about its contents.
    records = named.loaded(WHAT, path, lambda: opened(path).docs_count())
    return named.ranges(path, records, count)


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Records with a body are documents; others (passages, abstracts) are judged as they are."""
    collection = opened(shard.path)
    for piece in shard.pieces:
        records = named.loaded(WHAT, shard.path, functools.partial(_begun, collection, piece))
        for number, record in enumerate(records):
            place = Place(piece.file, piece.start + number + 1)
            try:
                document = _document(record, place)
                taken = accepted(document, bad)
            except BadRecord as error:
                bad.add(error, place)
                continue
            if taken:
                yield document


@functools.lru_cache(maxsize=2)
def opened(name: str) -> Any:
    library = named.library("ir_datasets", "ir_datasets")
    return named.loaded(WHAT, name, lambda: library.load(name))


def _begun(collection: Any, piece: Piece) -> Iterator[Any]:
    """A range of records; the first is read at once, so that a failure to load shows here."""
    records = iter(collection.docs_iter()[piece.start : piece.stop])
    return itertools.chain(list(itertools.islice(records, 1)), records)


def _document(record: Any, place: Place) -> Document:
    fields = record._asdict()
    name, title = str(fields.pop("doc_id")), str(fields.pop("title", "") or "")
    if "body" in fields:
        sections = (Section("", str(fields.pop("body"))),)
        meta = {"url": fields["url"]} if fields.get("url") else {}
        return Document(name, title, sections, source="ir_datasets", meta=meta, place=place)
    text = fields["text"] if isinstance(fields.get("text"), str) else record.default_text()
    passages = (Passage(name, title, text),)
    return Document(name, title, passages=passages, source="ir_datasets", place=place)


FORMAT = DocumentFormat(share, read, by_name=True)
