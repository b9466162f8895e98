"""Documents a line or a row: BEIR, MS MARCO, DPR's Wikipedia, Tevatron, JSON lines.

Passages of judged collections stay whole, those without text too, so that a collection keeps its
size whatever its passages hold.
"""

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Section,
    Shard,
    line_format,
    sharer,
)
from qac_jax.formats.files import (
    Line,
    Piece,
    columns,
    find,
    json_object,
    line_before,
    parsed,
    quoted_columns,
    raw_lines,
    share_out,
    string,
)
from qac_jax.formats.identities import IdSet
from qac_jax.formats.registry import LIKELY, NO, SURE, Sample
from qac_jax.formats.training import passage_of


# What tables and JSON lines call the roles of their columns, the most usual names first. Tables in
# a folder know further ones.
IDS = ("_id", "id", "docid", "doc_id", "text_id", "pid")
TITLES = ("title", "headline")
TEXTS = ("text", "contents", "content", "body", "passage", "article")


# JSON lines, and The Pile: {"text": …, "meta": {"pile_set_name": …}}.


def document_of(record: Mapping[str, Any], keys: Mapping[str, str], line: Line) -> Document:
    """`keys` names the keys of id, title and text; empty: whichever usual one there is. The rest
    goes to the meta, but for AugQ's outputs, which `qac generate --imported` reads.
    """

    def key(role: str, usual: Sequence[str]) -> str:
        found = (name for name in usual if record.get(name) is not None)
        return keys[role] or next(found, usual[0])

    name, title, text = key("id", IDS), key("title", TITLES), key("text", TEXTS)
    meta = record.get("meta", record.get("metadata"))
    meta = dict(meta) if isinstance(meta, dict) else {}
    meta |= _rest(record, name, title, text, "meta", "metadata", "source", "outputs")
    return Document(
        string(record, name, what="id" if keys["id"] else "") or line.made_id,
        string(record, title).strip(),
        (Section("", _text_or_null(record, text, "text")),),
        source=string(record, "source") or str(meta.pop("pile_set_name", "")),
        meta=meta,
        place=line.place,
    )


def _text_or_null(record: Mapping[str, Any], key: str, what: str) -> str:
    return "" if record.get(key, "") is None else string(record, key, what=what)


def _rest(record: Mapping[str, Any], *used: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in used}


def _read_jsonl(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """With the option source=Pile-CC only documents of this source; the others are counted."""
    wanted = shard.options["source"]

    def parse(line: Line) -> Document | None:
        document = document_of(json_object(line.text), shard.options, line)
        if wanted and document.source != wanted:
            bad.leave_out("documents of other sources")
            return None
        return document

    for piece in shard.pieces:
        yield from parsed(piece, bad, parse)


# Passages a line.


def _passage(
    name: str, title: str, text: str, line: Line, meta: Mapping[str, Any] | None = None
) -> Document:
    """A passage of a table; MS MARCO's have "-" for a missing title."""
    title = "" if title == "-" else title.strip()
    passages = (Passage(name, title, text),)
    return Document(name, title, passages=passages, meta=meta or {}, place=line.place)


# BEIR's folders. documents.jsonl, where there is one, lists the passages of each document: {"_id",
# "title", "source", "passages": [{"_id", "text"}, …]}. Passages of corpus.jsonl that it does not
# name follow as documents of one passage each: nothing is lost between the two files.


def _share_beir(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    if not os.path.isdir(path):
        return sharer(".jsonl")(path, count, options)
    files = [f for f in (find(path, "documents.jsonl"), find(path, "corpus.jsonl")) if f]
    if not files:
        raise UserError(f"{path} holds neither corpus.jsonl nor documents.jsonl, as in BEIR")
    return share_out(files, count)


def _read_beir(shard: Shard, bad: BadLines) -> Iterator[Document]:
    known: IdSet | None = None
    documents = find(shard.path, "documents.jsonl")
    if documents and any(piece.file != documents for piece in shard.pieces):
        known = _passages_of(documents, os.path.getmtime(documents))

    def parse(line: Line) -> Document | None:
        record = json_object(line.text)
        name = string(record, "_id", what="id")
        title = string(record, "title").strip()
        if "passages" not in record:
            if known is not None and name in known:
                return None
            given = record.get("metadata") or {}
            meta = dict(given) if isinstance(given, dict) else {"metadata": given}
            meta |= _rest(record, "_id", "title", "text", "metadata")
            return _passage(name, title, _text_or_null(record, "text", "text"), line, meta)
        given = record["passages"]
        if not isinstance(given, list) or not given or not all(isinstance(p, dict) for p in given):
            raise BadRecord(f"the passages of {name!r} are not a list of objects {{_id, text}}")
        passages = tuple(
            Passage(
                string(p, "_id", what="passage id"),
                string(p, "title").strip() or title,
                _text_or_null(p, "text", "passage text"),
            )
            for p in given
        )
        meta = _rest(record, "_id", "title", "source", "passages")
        return Document(name, title, (), passages, string(record, "source"), meta, place=line.place)

    for piece in shard.pieces:
        yield from parsed(piece, bad, parse)


@functools.lru_cache(maxsize=1)
def _passages_of(documents: str, modified: float) -> IdSet:
    """Ids of all passages that documents.jsonl holds; its bad lines are reported elsewhere."""

    def names(line: Line) -> list[str]:
        found = json_object(line.text).get("passages")
        given = found if isinstance(found, list) else []
        return [str(p["_id"]) for p in given if isinstance(p, dict) and "_id" in p]

    ids = parsed(documents, BadLines(1 << 62), names)
    return IdSet(name for given in ids for name in given)


def _is_beir(sample: Sample) -> int:
    if os.path.isdir(sample.path) and find(sample.path, "corpus.jsonl", "documents.jsonl"):
        return SURE
    return LIKELY if sample.record == {} or "_id" in (sample.record or ()) else NO


# MS MARCO documents: docid, url, title, body in msmarco-docs.tsv, without quoting or header.


def _msmarco_document(line: Line, options: Mapping[str, str]) -> Document:
    """`released`: as the released code's awk, which keeps the blank-separated fields from the third
    to the last: the title is part of the text and runs of blanks are one.
    """
    docid, url, title, body = columns(line.text, ("docid", "url", "title", "body"))
    if options["released"] == "true":
        fields = filter(None, line.text.replace("\t", " ").split(" "))
        title, body = "", " ".join(list(fields)[2:])
    sections = (Section("", body),)
    return Document(
        docid, title.strip(), sections, source="msmarco", meta={"url": url}, place=line.place
    )


# MS MARCO passages: collection.tsv (id, text), corpus.tsv (id, title, text), or RocketQA's folder,
# which has the titles in a file of their own (para.title.txt). They are joined to para.txt by id,
# shard by shard, so that memory does not grow.


def _share_passages(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    paragraphs = find(path, "para.txt")
    return share_out([paragraphs], count) if paragraphs else sharer(".tsv")(path, count, options)


def _read_passages(shard: Shard, bad: BadLines) -> Iterator[Document]:
    file = find(shard.path, "para.title.txt")
    titles = _titles(shard, file, bad) if file else None

    def parse(line: Line) -> Document:
        if line.text.count("\t") == 2 and titles is None:
            pid, title, text = line.text.split("\t")
        else:
            pid, text = columns(line.text, ("id", "text"))
            title = titles.get(pid, "") if titles else ""
        return _passage(pid, title, text, line)

    for piece in shard.pieces:
        yield from parsed(piece, bad, parse)


def _is_msmarco(sample: Sample) -> int:
    """A table whose first column is no text in its first lines."""
    table, lines = sample.named(".tsv") and sample.columns, sample.head.split("\n")[:2]
    return LIKELY if table and not any(" " in line.split("\t")[0] for line in lines) else NO


def _titles(shard: Shard, file: str, bad: BadLines) -> dict[str, str]:
    """The titles of this shard's passages."""
    wanted = {
        raw.split(b"\t", 1)[0].decode(errors="replace")
        for piece in shard.pieces
        for raw, _, _ in raw_lines(piece)
    }

    def parse(line: Line) -> tuple[str, str] | None:
        pid, title = columns(line.text, ("id", "title"))
        return (pid, title) if pid in wanted else None

    # Every shard meets the same bad lines: only the first may count them.
    return dict(parsed(file, bad if shard.index == 0 else BadLines(1 << 62), parse))


# DPR's Wikipedia: psgs_w100.tsv (id, text, title), quoted as Python's csv writes it. Passages of
# one article follow one another under the same title; together they are a document, which is what
# passage pairs need. Cuts between shards are moved to where an article begins.

_DPR = ("id", "text", "title")


def _share_dpr(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    shards = []
    for pieces in sharer(".tsv")(path, count, options):
        moved = [
            Piece(
                file,
                _next_article(file, start) if start else 0,
                None if stop is None else _next_article(file, stop),
            )
            for file, start, stop in pieces
        ]
        if whole := tuple(p for p in moved if p.stop is None or p.start < p.stop):
            shards.append(whole)
    return shards


def _read_dpr(shard: Shard, bad: BadLines) -> Iterator[Document]:
    def parse(line: Line) -> tuple[Place, Passage] | None:
        if line.offset == 0 and line.text.split("\t") == list(_DPR):
            return None
        name, text, title = quoted_columns(line.text, _DPR)
        if not name.strip():
            raise BadRecord("the id is missing or empty")
        return line.place, Passage(name, title.strip(), text)

    def article(row: tuple[Place, Passage]) -> tuple[str, str]:
        return row[1].title, "" if row[1].title else row[1].id

    for piece in shard.pieces:
        for _, rows in itertools.groupby(parsed(piece, bad, parse), key=article):
            (place, first), *rest = rows
            passages = (first, *(passage for _, passage in rest))
            yield Document(first.id, first.title, (), passages, "wikipedia", place=place)


@functools.lru_cache(maxsize=4096)
def _next_article(file: str, offset: int) -> int:
    """Where the first article begins that begins at `offset` or behind it."""

    def title_of(raw: bytes) -> bytes:
        return raw.rstrip(b"\r\n").rsplit(b"\t", 1)[-1].strip()

    before = None
    for raw, _, start in raw_lines(Piece(file, offset)):
        before = title_of(line_before(file, start)) if before is None else before
        if title_of(raw) != before or not before:
            return start
    return os.path.getsize(file)


def _is_dpr(sample: Sample) -> int:
    return SURE if sample.named(".tsv") and sample.columns[:2] == ["id", "text"] else NO


# Tevatron's JSON lines: {"docid", "title", "text"} (or "text_id") are passages.


def _tevatron(line: Line, options: Mapping[str, str]) -> Document:
    passage = passage_of(json_object(line.text))
    return Document(passage.id, passage.title, (), (passage,), place=line.place)


DOCUMENT_FORMATS = {
    "beir": DocumentFormat(_share_beir, _read_beir, recognise=_is_beir),
    "dpr": DocumentFormat(_share_dpr, _read_dpr, recognise=_is_dpr),
    "jsonl": DocumentFormat(
        sharer(".jsonl", ".json", ".ndjson"),
        _read_jsonl,
        options={"id": "", "title": "", "text": "", "source": ""},
        recognise=lambda sample: LIKELY if {*TEXTS} & {*(sample.record or ())} else NO,
    ),
    "msmarco_docs": line_format(_msmarco_document, (".tsv",), options={"released": "false"}),
    "msmarco_passages": DocumentFormat(_share_passages, _read_passages, recognise=_is_msmarco),
    "tevatron": line_format(
        _tevatron,
        (".jsonl", ".json"),
        recognise=lambda sample: SURE if sample.record and "docid" in sample.record else NO,
    ),
}
