"""Any folder: Markdown, HTML, text, tables, JSON lines, reStructuredText and PDF, mixed.

A page is a document of sections, a row of a table a document; ids begin with the path below the
folder. What is not read is listed with the reason, and stops nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping

from qac_jax.errors import UserError
from qac_jax.formats import tables
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard, default_count
from qac_jax.formats.files import Piece
from qac_jax.formats.pages import NotRead, PageFormat, Source
from qac_jax.formats.registry import PAGES
from qac_jax.formats.walking import Walk, walk


_TEXT = "text"


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    tables.parsed(options["columns"])
    walked = _walked(path, options)
    if not walked.files:
        bad = BadLines()
        bad.skipped += walked.skipped
        raise UserError(
            f"{path} holds no file that can be read ({bad.reasons() or 'it is empty'}); expected "
            f"{', '.join(suffix for suffix in sorted(_kinds(options['as_text'])) if suffix)}"
        )
    total = sum(size for _, _, size in walked.files)
    count = min(count or default_count([file for _, file, _ in walked.files]), len(walked.files))
    shards: list[list[Piece]] = [[] for _ in range(count)]
    before = 0
    for _, file, size in walked.files:
        # A file goes where its middle lies.
        shards[min(count - 1, int((before + size / 2) * count / total))].append(Piece(file))
        before += size
    return [tuple(pieces) for pieces in shards if pieces]


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    options = dict(shard.options)
    kinds, columns = _kinds(options["as_text"]), tables.parsed(options["columns"])
    base = shard.path if os.path.isdir(shard.path) else os.path.dirname(shard.path)
    if shard.index == 0:
        bad.skipped += _walked(shard.path, options).skipped
    for piece in shard.pieces:
        source = Source(piece.file, base, _limit(options), columns, bad)
        kind = kinds[os.path.splitext(piece.file)[1].lower()]
        try:
            yield from kind.read(source)
        except NotRead as error:
            source.skip(error.reason, error.detail)
        except OSError as error:
            source.skip("unreadable", error.strerror or str(error))
        except RecursionError:
            source.skip("nested too deeply")


def _walked(path: str, options: Mapping[str, str]) -> Walk:
    suffixes, limit = _kinds(options["as_text"]), _limit(options)
    if os.path.isdir(path):
        return walk(path, suffixes, limit)
    if not os.path.isfile(path):
        raise UserError(f"{path} is not a folder; format folder reads one folder, or one file")
    if os.path.splitext(path)[1].lower() not in suffixes:
        raise UserError(
            f"{path} is of a kind that is not read; expected a folder, or a file named "
            f"{', '.join('*' + suffix for suffix in sorted(suffixes) if suffix)}"
        )
    return Walk([(os.path.basename(path), path, max(1, os.path.getsize(path)))], [])


def _limit(options: Mapping[str, str]) -> int:
    if not options["max_mb"].isdecimal() or not int(options["max_mb"]):
        raise UserError(f"max_mb={options['max_mb']!r} is not a size; expected such as 100")
    return int(options["max_mb"]) << 20


@functools.cache
def _kinds(as_text: str) -> dict[str, PageFormat]:
    """Suffix -> what reads such files; `as_text` lists further suffixes of plain text."""
    kinds = {suffix: page for page in PAGES.all().values() for suffix in page.suffixes}
    for suffix in filter(None, (part.strip().lower() for part in as_text.split(","))):
        kinds[f".{suffix.lstrip('.')}"] = PAGES.get(_TEXT)
    return kinds


FORMAT = DocumentFormat(share, read, options={"columns": "", "as_text": "", "max_mb": "100"})
