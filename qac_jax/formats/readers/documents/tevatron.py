"""Tevatron's JSON lines.

Corpus lines {"docid", "title", "text"} (or "text_id") are passages. Training lines {"query_id",
"query", "positive_passages", "negative_passages"} are read as the passages they name, each once;
`readers/training/tevatron.py` reads them as questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Document, DocumentFormat, Passage, Pieces, Shard, accepted
from qac_jax.formats.files import Line, Piece, expand, raw_lines, text_lines
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import json_object, read_lines, share_lines, string
from qac_jax.formats.registry import NO, SURE, Sample


_GROUPS = ("positive_passages", "negative_passages")


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    files = expand(path, (".jsonl", ".json"))
    if any(_is_training(file) for file in files):
        # A passage occurs in many training lines: only one reader can tell which is the first.
        return [tuple(Piece(file) for file in files)]
    return share_lines(path, count, (".jsonl", ".json"))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    if any(_is_training(piece.file) for piece in shard.pieces):
        return _named_passages(shard, bad)
    return read_lines(shard, bad, lambda line: _document(json_object(line.text), line))


def passage_of(record: Mapping[str, Any]) -> Passage:
    if isinstance(record.get("text"), list):
        raise BadRecord("the text is a list of token ids; expected Tevatron's file of plain text")
    return Passage(
        string(record, "docid", "text_id", "_id", what="id"),
        string(record, "title").strip(),
        string(record, "text", what="text"),
    )


def _named_passages(shard: Shard, bad: BadLines) -> Iterator[Document]:
    known = IdSet()
    for piece in shard.pieces:
        for line in text_lines(piece, bad):
            try:
                record = json_object(line.text)
                given = [p for group in _GROUPS for p in record.get(group) or []]
                fresh = [_document(p, line) for p in given]
                fresh = [document for document in fresh if accepted(document, bad)]
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            yield from (document for document in fresh if known.add(document.id))


def _document(record: Mapping[str, Any], line: Line) -> Document:
    passage = passage_of(record)
    return Document(passage.id, passage.title, passages=(passage,), place=line.place)


def _is_training(file: str) -> bool:
    first = next(raw_lines(Piece(file)), (b"", 0, 0))[0]
    return b'"positive_passages"' in first


def recognise(sample: Sample) -> int:
    return SURE if sample.record and "docid" in sample.record else NO


FORMAT = DocumentFormat(share, read, recognise=recognise)
