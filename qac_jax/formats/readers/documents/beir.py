"""BEIR folders. `documents.jsonl`, where there is one, lists the passages of each document:
{"_id", "title", "source", "passages": [{"_id", "text"}, …]}. Passages of `corpus.jsonl` that it
does not name follow as documents of one passage each: nothing is lost between the two files.
Passages without text are kept.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Shard,
    default_count,
)
from qac_jax.formats.files import Line, Piece, find, share_out, text_lines
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import json_object, read_lines, share_lines, string
from qac_jax.formats.registry import LIKELY, NO, SURE, Sample


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    if not os.path.isdir(path):
        return share_lines(path, count, (".jsonl",))
    files = [f for f in (_documents_file(path), find(path, "corpus.jsonl")) if f]
    if not files:
        raise UserError(
            f"{path} holds neither corpus.jsonl nor documents.jsonl; expected a BEIR folder with "
            f"corpus.jsonl, queries.jsonl and qrels/"
        )
    return share_out(files, count or default_count(files))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    known: IdSet | None = None
    documents = _documents_file(shard.path)
    if documents and any(piece.file != documents for piece in shard.pieces):
        known = _passages_of(documents, os.path.getmtime(documents))

    def parse(line: Line) -> Document | None:
        record = json_object(line.text)
        if "passages" in record:
            return _document(record, line)
        document = _passage(record, line)
        return None if known is not None and document.id in known else document

    # As BEIR's own tools do: a judged collection keeps its size, whatever its passages hold.
    return read_lines(shard, bad, parse)


def _document(record: Mapping[str, Any], line: Line) -> Document:
    name = string(record, "_id", what="id")
    title = string(record, "title").strip()
    given = record["passages"]
    if not isinstance(given, list) or not given or not all(isinstance(p, dict) for p in given):
        raise BadRecord(f"the passages of {name!r} are not a list of objects {{_id, text}}")
    passages = tuple(
        Passage(
            string(p, "_id", what="passage id"),
            string(p, "title").strip() or title,
            _text(p, "passage text"),
        )
        for p in given
    )
    meta = _rest(record, "_id", "title", "source", "passages")
    source = string(record, "source")
    return Document(name, title, passages=passages, source=source, meta=meta, place=line.place)


def _passage(record: Mapping[str, Any], line: Line) -> Document:
    name = string(record, "_id", what="id")
    title = string(record, "title").strip()
    passages = (Passage(name, title, _text(record, "text")),)
    given = record.get("metadata") or {}
    meta = dict(given) if isinstance(given, dict) else {"metadata": given}
    meta |= _rest(record, "_id", "title", "text", "metadata")
    return Document(name, title, passages=passages, meta=meta, place=line.place)


def _text(record: Mapping[str, Any], what: str) -> str:
    """The text; null is none."""
    return "" if record.get("text", "") is None else string(record, "text", what=what)


def _rest(record: Mapping[str, Any], *used: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in used}


def recognise(sample: Sample) -> int:
    if os.path.isdir(sample.path) and find(sample.path, "corpus.jsonl", "documents.jsonl"):
        return SURE
    return NO if sample.record is None else LIKELY


def _documents_file(path: str) -> str | None:
    return find(path, "documents.jsonl") if os.path.isdir(path) else None


@functools.lru_cache(maxsize=1)
def _passages_of(documents: str, modified: float) -> IdSet:
    """Ids of all passages that documents.jsonl holds; its bad lines are reported elsewhere."""
    return IdSet(
        str(passage["_id"])
        for line in text_lines(Piece(documents), BadLines(1 << 62))
        for passage in _safely(line.text)
        if isinstance(passage, dict) and "_id" in passage
    )


def _safely(text: str) -> list[Any]:
    try:
        passages = json_object(text).get("passages")
    except BadRecord:
        return []
    return passages if isinstance(passages, list) else []


FORMAT = DocumentFormat(share, read, recognise=recognise)
