"""MS MARCO passages: collection.tsv (id, text), corpus.tsv (id, title, text), or RocketQA's folder.

RocketQA stores the passages' titles in a file of their own (para.title.txt) and writes `-` where
there is none; it is joined to para.txt by id, shard by shard, so that memory does not grow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard, default_count
from qac_jax.formats.files import Line, Piece, find, raw_lines, share_out, text_lines
from qac_jax.formats.lines import columns, read_lines, share_lines, table_passage
from qac_jax.formats.registry import LIKELY, NO, Sample


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    paragraphs = find(path, "para.txt") if os.path.isdir(path) else None
    if paragraphs:
        return share_out([paragraphs], count or default_count([paragraphs]))
    return share_lines(path, count, (".tsv",))


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
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
    """The titles of this shard's passages. Each shard reads them all, the first one complains."""
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


def recognise(sample: Sample) -> int:
    return LIKELY if sample.columns and sample.named(".tsv") else NO


FORMAT = DocumentFormat(share, read, recognise=recognise)
