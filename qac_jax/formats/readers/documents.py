"""Documents a line or a row: BEIR, MS MARCO, DPR's Wikipedia, Tevatron, MRQA, JSON lines, tables;
and folders of text files.

Passages of judged collections stay whole, those without text too, so that a collection keeps its
size whatever its passages hold.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Section,
    Shard,
    accepted,
    default_count,
)
from qac_jax.formats.files import (
    Line,
    Piece,
    expand,
    find,
    line_before,
    raw_lines,
    share_out,
    text_lines,
)
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import (
    columns,
    folder_format,
    json_object,
    line_format,
    made_id,
    quoted_columns,
    read_lines,
    share_lines,
    string,
    table_passage,
)
from qac_jax.formats.registry import LIKELY, NO, SURE, Sample


_PARAGRAPHS = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


# JSON lines, and The Pile: {"text": …, "meta": {"pile_set_name": …}}.

_IDS = ("_id", "id", "docid", "doc_id", "text_id", "pid")
_TITLES = ("title", "headline")
_TEXTS = ("text", "contents", "content", "body", "passage", "article")


def document_of(record: Mapping[str, Any], keys: Mapping[str, str], line: Line) -> Document:
    """`keys` names the keys of id, title and text; empty: whichever usual one there is.

    Records with {"sections": [{"heading", "text"}, …]} keep them. What is left goes to the
    document's meta, but for AugQ's outputs, which `qac generate --imported` reads.
    """

    def key(role: str, usual: Sequence[str]) -> str:
        found = (name for name in usual if record.get(name) is not None)
        return keys[role] or next(found, usual[0])

    name, title, text = key("id", _IDS), key("title", _TITLES), key("text", (*_TEXTS, "sections"))
    if text == "sections":
        given = record["sections"]
        sections = tuple(_section(part) for part in (given if isinstance(given, list) else [given]))
    else:
        empty = text in record and record[text] is None
        sections = (Section("", "" if empty else string(record, text, what="text")),)
    meta = record.get("meta", record.get("metadata"))
    meta = dict(meta) if isinstance(meta, dict) else {}
    meta |= _rest(record, name, title, text, "meta", "metadata", "source", "outputs")
    return Document(
        string(record, name, what="id" if keys["id"] else "") or made_id(line),
        string(record, title).strip(),
        sections,
        source=string(record, "source") or str(meta.pop("pile_set_name", "")),
        meta=meta,
        place=line.place,
    )


def _section(part: Any) -> Section:
    if not isinstance(part, dict):
        raise BadRecord("sections are not objects {heading, text}")
    return Section(string(part, "heading", "title"), string(part, "text", what="section's text"))


def _rest(record: Mapping[str, Any], *used: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in used}


def _share_jsonl(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return share_lines(path, count, (".jsonl", ".json", ".ndjson"))


def _read_jsonl(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """With the option source=Pile-CC only documents of this source; the others are counted."""
    options = dict(shard.options)

    def parse(line: Line) -> Document | None:
        document = document_of(json_object(line.text), options, line)
        if options["source"] and document.source != options["source"]:
            bad.leave_out("documents of other sources")
            return None
        return document

    return read_lines(shard, bad, parse)


# Tab-separated lines without quoting or header, whose columns an option names.

_COLUMNS = ("id", "title", "text", "url", "_")


def _share_tsv(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    names = options["columns"].split(",")
    for name in names:
        if name not in _COLUMNS:
            raise UserError(
                f"columns={options['columns']}: no column {name!r}; expected names "
                f"out of {', '.join(_COLUMNS)} ({nearest(name, _COLUMNS)})"
            )
    if "text" not in names:
        raise UserError(f"columns={options['columns']}: one of them must be called text")
    return share_lines(path, count, (".tsv", ".txt"))


def _read_tsv(shard: Shard, bad: BadLines) -> Iterator[Document]:
    names = shard.option("columns").split(",")

    def parse(line: Line) -> Document:
        row = dict(zip(names, columns(line.text, names), strict=True))
        name = row["id"] if "id" in names else made_id(line)
        document = table_passage(name, row.get("title", ""), row["text"], line)
        if "url" in names:
            document.meta["url"] = row["url"]  # type: ignore[index]
        return document

    return read_lines(shard, bad, parse)


# A folder of text files.


def _text_document(name: str, text: str) -> Document:
    """Paragraphs (divided by blank lines) become one line each."""
    paragraphs = (" ".join(p.split()) for p in _PARAGRAPHS.split(text))
    body = "\n".join(p for p in paragraphs if p)
    title = os.path.splitext(os.path.basename(name))[0].replace("_", " ")
    return Document(name, title, (Section("", body),))


# BEIR's folders. documents.jsonl, where there is one, lists the passages of each document: {"_id",
# "title", "source", "passages": [{"_id", "text"}, …]}. Passages of corpus.jsonl that it does not
# name follow as documents of one passage each: nothing is lost between the two files.


def _share_beir(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    if not os.path.isdir(path):
        return share_lines(path, count, (".jsonl",))
    files = [f for f in (_documents_file(path), find(path, "corpus.jsonl")) if f]
    if not files:
        raise UserError(
            f"{path} holds neither corpus.jsonl nor documents.jsonl; expected a BEIR folder with "
            f"corpus.jsonl, queries.jsonl and qrels/"
        )
    return share_out(files, count or default_count(files))


def _read_beir(shard: Shard, bad: BadLines) -> Iterator[Document]:
    known: IdSet | None = None
    documents = _documents_file(shard.path)
    if documents and any(piece.file != documents for piece in shard.pieces):
        known = _passages_of(documents, os.path.getmtime(documents))

    def parse(line: Line) -> Document | None:
        record = json_object(line.text)
        if "passages" in record:
            return _beir_document(record, line)
        document = _beir_passage(record, line)
        return None if known is not None and document.id in known else document

    return read_lines(shard, bad, parse)


def _beir_document(record: Mapping[str, Any], line: Line) -> Document:
    name = string(record, "_id", what="id")
    title = string(record, "title").strip()
    given = record["passages"]
    if not isinstance(given, list) or not given or not all(isinstance(p, dict) for p in given):
        raise BadRecord(f"the passages of {name!r} are not a list of objects {{_id, text}}")
    passages = tuple(
        Passage(
            string(p, "_id", what="passage id"),
            string(p, "title").strip() or title,
            _text_or_null(p, "passage text"),
        )
        for p in given
    )
    meta = _rest(record, "_id", "title", "source", "passages")
    source = string(record, "source")
    return Document(name, title, passages=passages, source=source, meta=meta, place=line.place)


def _beir_passage(record: Mapping[str, Any], line: Line) -> Document:
    name = string(record, "_id", what="id")
    title = string(record, "title").strip()
    passages = (Passage(name, title, _text_or_null(record, "text")),)
    given = record.get("metadata") or {}
    meta = dict(given) if isinstance(given, dict) else {"metadata": given}
    meta |= _rest(record, "_id", "title", "text", "metadata")
    return Document(name, title, passages=passages, meta=meta, place=line.place)


def _text_or_null(record: Mapping[str, Any], what: str) -> str:
    return "" if record.get("text", "") is None else string(record, "text", what=what)


def _documents_file(path: str) -> str | None:
    return find(path, "documents.jsonl") if os.path.isdir(path) else None


@functools.lru_cache(maxsize=1)
def _passages_of(documents: str, modified: float) -> IdSet:
    """Ids of all passages that documents.jsonl holds; its bad lines are reported elsewhere."""

    def passages(text: str) -> list[Any]:
        try:
            found = json_object(text).get("passages")
        except BadRecord:
            return []
        return found if isinstance(found, list) else []

    return IdSet(
        str(passage["_id"])
        for line in text_lines(Piece(documents), BadLines(1 << 62))
        for passage in passages(line.text)
        if isinstance(passage, dict) and "_id" in passage
    )


def _is_beir(sample: Sample) -> int:
    if os.path.isdir(sample.path) and find(sample.path, "corpus.jsonl", "documents.jsonl"):
        return SURE
    return NO if sample.record is None else LIKELY


# MS MARCO documents: docid, url, title, body in msmarco-docs.tsv, without quoting or header.

_BLANKS = re.compile("[ \t]+")


def _msmarco_document(line: Line, options: Mapping[str, str]) -> Document:
    """`released`: as the released code reads them, title and body merged into one line.

    Its awk keeps the blank-separated fields from the third to the last, so the title is part
    of the text and runs of blanks are one.
    """
    docid, url, title, body = columns(line.text, ("docid", "url", "title", "body"))
    if options["released"] == "true":
        title, body = "", " ".join(_BLANKS.split(line.text.strip(" \t"))[2:])
    sections = (Section("", body),)
    return Document(
        docid, title.strip(), sections, source="msmarco", meta={"url": url}, place=line.place
    )


# MS MARCO passages: collection.tsv (id, text), corpus.tsv (id, title, text), or RocketQA's folder,
# which has the titles in a file of their own (para.title.txt). They are joined to para.txt by id,
# shard by shard, so that memory does not grow.


def _share_passages(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    paragraphs = find(path, "para.txt") if os.path.isdir(path) else None
    if paragraphs:
        return share_out([paragraphs], count or default_count([paragraphs]))
    return share_lines(path, count, (".tsv",))


def _read_passages(shard: Shard, bad: BadLines) -> Iterator[Document]:
    titles: dict[str, str] | None = None
    if os.path.isdir(shard.path) and (file := find(shard.path, "para.title.txt")):
        titles = _titles(shard, file, bad)

    def parse(line: Line) -> Document:
        if line.text.count("\t") == 2 and titles is None:
            pid, title, text = line.text.split("\t")
        else:
            pid, text = columns(line.text, ("id", "text"))
            title = titles.get(pid, "") if titles else ""
        return table_passage(pid, title, text, line)

    return read_lines(shard, bad, parse)


def _titles(shard: Shard, file: str, bad: BadLines) -> dict[str, str]:
    """The titles of this shard's passages."""
    wanted = {
        raw.split(b"\t", 1)[0].decode(errors="replace")
        for piece in shard.pieces
        for raw, _, _ in raw_lines(piece)
    }
    # Every shard meets the same bad lines: only the first may count them.
    counted = bad if shard.index == 0 else BadLines(1 << 62)
    titles = {}
    for line in text_lines(Piece(file), counted):
        fields = line.text.split("\t")
        if len(fields) != 2:
            message = f"{len(fields)} columns; expected 2 divided by tabs: id, title"
            counted.add(message, line.place)
        elif fields[0] in wanted:
            titles[fields[0]] = fields[1]
    return titles


# DPR's Wikipedia: psgs_w100.tsv (id, text, title), quoted as Python's csv writes it. Passages of
# one article follow one another under the same title; together they are a document, which is what
# passage pairs need. Cuts between shards are moved to where an article begins.

_DPR = ("id", "text", "title")


def _share_dpr(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    shards = []
    for pieces in share_lines(path, count, (".tsv",)):
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
    for piece in shard.pieces:
        rows: list[tuple[Line, Passage]] = []
        for line in text_lines(piece, bad):
            if line.offset == 0 and line.text.split("\t") == list(_DPR):
                continue
            try:
                name, text, title = quoted_columns(line.text, _DPR)
                if not name.strip():
                    raise BadRecord("the id is missing or empty")
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            passage = Passage(name, title.strip(), text)
            if rows and not (passage.title and passage.title == rows[0][1].title):
                yield _article(rows)
                rows = []
            if not (passage.text.strip() or passage.title):
                bad.keep("passages without text")
            rows.append((line, passage))
        if rows:
            yield _article(rows)


def _article(rows: Sequence[tuple[Line, Passage]]) -> Document:
    line, first = rows[0]
    passages = tuple(passage for _, passage in rows)
    return Document(first.id, first.title, passages=passages, source="wikipedia", place=line.place)


@functools.lru_cache(maxsize=4096)
def _next_article(file: str, offset: int) -> int:
    """Where the first article begins that begins at `offset` or behind it."""

    def title_of(raw: bytes) -> bytes:
        return raw.rstrip(b"\r\n").rsplit(b"\t", 1)[-1].strip()

    position, before = offset, None
    for raw, _, start in raw_lines(Piece(file, offset)):
        title = title_of(raw)
        if before is None:
            before = title_of(line_before(file, start))
        if title != before or not title:
            return start
        before, position = title, start + len(raw)
    return position


def _is_dpr(sample: Sample) -> int:
    return SURE if sample.named(".tsv") and sample.columns[:2] == ["id", "text"] else NO


# Tevatron's JSON lines. Corpus lines {"docid", "title", "text"} (or "text_id") are passages.
# Training lines {"query_id", "query", "positive_passages", "negative_passages"} are read as the
# passages they name, each once; `training.py` reads them as questions.


def _share_tevatron(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    files = expand(path, (".jsonl", ".json"))
    if any(_is_training(file) for file in files):
        # A passage occurs in many training lines: only one reader can tell which is the first.
        return [tuple(Piece(file) for file in files)]
    return share_lines(path, count, (".jsonl", ".json"))


def _read_tevatron(shard: Shard, bad: BadLines) -> Iterator[Document]:
    if not any(_is_training(piece.file) for piece in shard.pieces):
        yield from read_lines(shard, bad, lambda line: _named(json_object(line.text), line))
        return
    known = IdSet()
    for piece in shard.pieces:
        for line in text_lines(piece, bad):
            try:
                record = json_object(line.text)
                groups = ("positive_passages", "negative_passages")
                given = [p for group in groups for p in record.get(group) or []]
                fresh = [_named(p, line) for p in given]
                fresh = [document for document in fresh if accepted(document, bad)]
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            yield from (document for document in fresh if known.add(document.id))


def passage_of(record: Mapping[str, Any]) -> Passage:
    """A passage as Tevatron stores it."""
    if isinstance(record.get("text"), list):
        raise BadRecord("the text is a list of token ids; expected Tevatron's file of plain text")
    return Passage(
        string(record, "docid", "text_id", "_id", what="id"),
        string(record, "title").strip(),
        string(record, "text", what="text"),
    )


def _named(record: Mapping[str, Any], line: Line) -> Document:
    passage = passage_of(record)
    return Document(passage.id, passage.title, passages=(passage,), place=line.place)


def _is_training(file: str) -> bool:
    first = next(raw_lines(Piece(file)), (b"", 0, 0))[0]
    return b'"positive_passages"' in first


# MRQA's contexts. A first line {"header": …} names the data set; every other line is a context
# with its questions. Markers tell documents, titles and paragraphs apart: `[DOC] [TLE] a title
# [PAR] text [SEP] text`. `queries.py` reads the questions.

_MARKER = re.compile(r"\s*\[(DOC|TLE|PAR|SEP)\]\s*")


def _mrqa_document(line: Line, options: Mapping[str, str]) -> Document | None:
    record = json_object(line.text)
    if "header" in record:
        return None
    parts = _MARKER.split(string(record, "context", what="context"))
    heading, sections = "", []
    for marker, text in zip(["PAR", *parts[1::2]], parts[::2], strict=True):
        if marker == "TLE":
            heading = text.strip()
        elif text.strip():
            sections.append(Section(heading, text.strip()))
    title = next((section.heading for section in sections if section.heading), "")
    return Document(made_id(line), title, tuple(sections), source="mrqa", place=line.place)


DOCUMENT_FORMATS = {
    "beir": DocumentFormat(_share_beir, _read_beir, recognise=_is_beir),
    "dpr": DocumentFormat(_share_dpr, _read_dpr, recognise=_is_dpr),
    "jsonl": DocumentFormat(
        _share_jsonl, _read_jsonl, options={"id": "", "title": "", "text": "", "source": ""}
    ),
    "mrqa": line_format(_mrqa_document, (".jsonl",)),
    "msmarco_docs": line_format(_msmarco_document, (".tsv",), options={"released": "false"}),
    "msmarco_passages": DocumentFormat(
        _share_passages,
        _read_passages,
        recognise=lambda sample: LIKELY if sample.columns and sample.named(".tsv") else NO,
    ),
    "tevatron": DocumentFormat(
        _share_tevatron,
        _read_tevatron,
        recognise=lambda sample: SURE if sample.record and "docid" in sample.record else NO,
    ),
    "text": folder_format(_text_document, (".txt", ".text", ".md", ".rst")),
    "tsv": DocumentFormat(_share_tsv, _read_tsv, options={"columns": "id,text"}),
}
