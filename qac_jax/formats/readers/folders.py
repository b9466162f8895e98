"""Folders of files: one file is one document, its path below the folder its id."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Pieces,
    Shard,
    accepted,
    default_count,
)
from qac_jax.formats.files import expand, plain_name, share_out, whole_text


def folder_format(parse: Callable[[str, str], Document], suffixes: Sequence[str]) -> DocumentFormat:
    """The files with these suffixes, in folders of any depth; `parse` takes id and text."""

    def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
        files = _inside(path, suffixes) if os.path.isdir(path) else expand(path)
        return share_out(sorted(files), count or default_count(files), cut=False)

    def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
        base = shard.path if os.path.isdir(shard.path) else None
        for piece in shard.pieces:
            name = os.path.relpath(piece.file, base) if base else piece.file
            try:
                text = whole_text(piece.file).replace("\r\n", "\n")
                document = parse(plain_name(name), text)
                taken = accepted(document, bad)
            except DataError as error:
                bad.add(error.message, Place(piece.file, error.line))
            except BadRecord as error:
                bad.add(error, Place(piece.file))
            else:
                if taken:
                    yield document

    return DocumentFormat(share, read)


def _inside(path: str, suffixes: Sequence[str]) -> list[str]:
    files = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if not name.startswith(".") and plain_name(name).lower().endswith(tuple(suffixes))
    ]
    if not files:
        raise UserError(f"{path} holds no {' or '.join(suffixes)} files; check the path")
    return files
