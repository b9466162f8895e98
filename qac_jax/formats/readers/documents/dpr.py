"""DPR's Wikipedia: psgs_w100.tsv (id, text, title), quoted as Python's csv writes it.

Passages of one article follow one another under the same title; together they are a document,
which is what passage pairs need. Cuts between shards are moved to where an article begins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Document, DocumentFormat, Passage, Pieces, Shard
from qac_jax.formats.files import Line, Piece, line_before, raw_lines, text_lines
from qac_jax.formats.lines import quoted_columns, share_lines
from qac_jax.formats.registry import NO, SURE, Sample


_COLUMNS = ("id", "text", "title")


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
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
        whole = tuple(p for p in moved if p.stop is None or p.start < p.stop)
        if whole:
            shards.append(whole)
    return shards


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    for piece in shard.pieces:
        rows: list[tuple[Line, Passage]] = []
        for line in text_lines(piece, bad):
            try:
                passage = _parse(line)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if passage is None:
                continue
            if rows and not (passage.title and passage.title == rows[0][1].title):
                yield _document(rows)
                rows = []
            if not (passage.text.strip() or passage.title):
                bad.keep("passages without text")
            rows.append((line, passage))
        if rows:
            yield _document(rows)


def _parse(line: Line) -> Passage | None:
    if line.offset == 0 and line.text.split("\t") == list(_COLUMNS):
        return None
    name, text, title = quoted_columns(line.text, _COLUMNS)
    if not name.strip():
        raise BadRecord("the id is missing or empty")
    return Passage(name, title.strip(), text)


def _document(rows: list[tuple[Line, Passage]]) -> Document:
    line, first = rows[0]
    passages = tuple(passage for _, passage in rows)
    return Document(first.id, first.title, passages=passages, source="wikipedia", place=line.place)


@functools.lru_cache(maxsize=4096)
def _next_article(file: str, offset: int) -> int:
    """Where the first article begins that begins at `offset` or behind it."""
    position = offset
    before: bytes | None = None
    for raw, _, start in raw_lines(Piece(file, offset)):
        title = _last_column(raw)
        if before is None:
            before = _last_column(line_before(file, start))
        if title != before or not title:
            return start
        before, position = title, start + len(raw)
    return position


def _last_column(raw: bytes) -> bytes:
    return raw.rstrip(b"\r\n").rsplit(b"\t", 1)[-1].strip()


def recognise(sample: Sample) -> int:
    return SURE if sample.named(".tsv") and sample.columns[:2] == ["id", "text"] else NO


FORMAT = DocumentFormat(share, read, recognise=recognise)
