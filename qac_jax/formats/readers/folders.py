"""Folders of text or HTML files: one file is one document, its path below the folder its id."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, Section, Shard, check, default_count
from qac_jax.formats.files import Piece, expand, plain_name, share_out, whole_text


_TEXT = (".txt", ".text", ".md", ".rst")
_HTML = (".html", ".htm", ".xhtml")
_PARAGRAPHS = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def share_text(path: str, count: int | None, options: Mapping[str, str]) -> list[tuple[Piece, ...]]:
    return _share(path, count, _TEXT)


def share_html(path: str, count: int | None, options: Mapping[str, str]) -> list[tuple[Piece, ...]]:
    return _share(path, count, _HTML)


def read_text(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Paragraphs (divided by blank lines) become one line each."""

    def parse(name: str, text: str) -> Document:
        paragraphs = (" ".join(p.split()) for p in _PARAGRAPHS.split(text))
        body = "\n".join(p for p in paragraphs if p)
        title = os.path.splitext(os.path.basename(name))[0].replace("_", " ")
        return Document(name, title, (Section("", body),))

    return _read(shard, bad, parse)


def read_html(shard: Shard, bad: BadLines) -> Iterator[Document]:
    from qac_jax.formats.readers.html import parse_html

    return _read(shard, bad, parse_html)


def _share(path: str, count: int | None, suffixes: Sequence[str]) -> list[tuple[Piece, ...]]:
    if os.path.isdir(path):
        files = [
            os.path.join(folder, name)
            for folder, below, names in os.walk(path)
            for name in names
            if not name.startswith(".") and plain_name(name).lower().endswith(tuple(suffixes))
        ]
        if not files:
            raise UserError(f"{path} holds no {' or '.join(suffixes)} files; check the path")
    else:
        files = expand(path)
    return share_out(sorted(files), count or default_count(files), cut=False)


def _read(shard: Shard, bad: BadLines, parse: Callable[[str, str], Document]) -> Iterator[Document]:
    base = shard.path if os.path.isdir(shard.path) else None
    for piece in shard.pieces:
        name = os.path.relpath(piece.file, base) if base else piece.file
        try:
            text = whole_text(piece.file).replace("\r\n", "\n")
            document = check(parse(plain_name(name), text))
        except DataError as error:
            bad.add(error.message, Place(piece.file, error.line))
        except BadRecord as error:
            bad.add(error, Place(piece.file))
        else:
            yield document
