"""MS MARCO's tables, and tables like them: tab-separated, no quoting, no header.

RocketQA stores the passages' titles in a file of their own (para.title.txt) and writes `-` where
there is none; it is joined to para.txt by id, shard by shard, so that memory does not grow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from qac_jax.errors import UserError, nearest
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Document, Passage, Section, Shard, default_count
from qac_jax.formats.files import Line, Piece, find, raw_lines, share_out, text_lines
from qac_jax.formats.lines import columns, made_id, read_lines, share_lines


_DOCUMENT = ("docid", "url", "title", "body")
_COLUMNS = ("id", "title", "text", "url", "_")
_BLANKS = re.compile("[ \t]+")
_NO_TITLE = "-"


def share_documents(
    path: str, count: int | None, options: Mapping[str, str]
) -> list[tuple[Piece, ...]]:
    return share_lines(path, count, (".tsv",))


def read_documents(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """`released`: as the released code reads them, title and body merged into one line.

    Its awk keeps the blank-separated fields from the third to the last, so the title is part
    of the text and runs of blanks are one.
    """
    released = shard.flag("released")

    def parse(line: Line) -> Document:
        docid, url, title, body = columns(line.text, _DOCUMENT)
        if released:
            title, body = "", " ".join(_BLANKS.split(line.text.strip(" \t"))[2:])
        sections = (Section("", body),)
        return Document(
            docid, title.strip(), sections, source="msmarco", meta={"url": url}, place=line.place
        )

    return read_lines(shard, bad, parse)


def share_passages(
    path: str, count: int | None, options: Mapping[str, str]
) -> list[tuple[Piece, ...]]:
    paragraphs = find(path, "para.txt") if os.path.isdir(path) else None
    if paragraphs:
        return share_out([paragraphs], count or default_count([paragraphs]))
    return share_lines(path, count, (".tsv",))


def read_passages(shard: Shard, bad: BadLines) -> Iterator[Document]:
    titles: dict[str, str] | None = None
    if os.path.isdir(shard.path) and (file := find(shard.path, "para.title.txt")):
        titles = _titles(shard, file, bad)

    def parse(line: Line) -> Document:
        if line.text.count("\t") == 2 and titles is None:
            pid, title, text = line.text.split("\t")
        else:
            pid, text = columns(line.text, ("id", "text"))
            title = titles.get(pid, "") if titles else ""
        return _passage(pid, title, text, line)

    return read_lines(shard, bad, parse)


def share_table(
    path: str, count: int | None, options: Mapping[str, str]
) -> list[tuple[Piece, ...]]:
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


def read_table(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Lines whose columns the user names; without an id they are numbered by their place."""
    names = shard.option("columns").split(",")

    def parse(line: Line) -> Document:
        row = dict(zip(names, columns(line.text, names), strict=True))
        pid = row["id"] if "id" in names else made_id(line)
        document = _passage(pid, row.get("title", ""), row["text"], line)
        if "url" in names:
            document.meta["url"] = row["url"]  # type: ignore[index]
        return document

    return read_lines(shard, bad, parse)


def _passage(pid: str, title: str, text: str, line: Line) -> Document:
    title = "" if title == _NO_TITLE else title.strip()
    if not text.strip():
        raise BadRecord(f"the text of {pid!r} is empty")
    return Document(pid, title, passages=(Passage(pid, title, text),), place=line.place)


def _titles(shard: Shard, file: str, bad: BadLines) -> dict[str, str]:
    """The titles of this shard's passages. Each shard reads them all, the first one complains."""
    wanted = {
        raw.split(b"\t", 1)[0].decode(errors="replace")
        for piece in shard.pieces
        for raw, _, _ in raw_lines(piece)
    }
    # Every shard meets the same bad lines: only the first may count them.
    told = bad if shard.index == 0 else BadLines(1 << 62)
    titles = {}
    for line in text_lines(Piece(file), told):
        fields = line.text.split("\t")
        if len(fields) != 2:
            told.add(f"{len(fields)} columns; expected 2 divided by tabs: id, title", line.place)
        elif fields[0] in wanted:
            titles[fields[0]] = fields[1]
    return titles
