"""Data sets by name, through the libraries that know them, where those are installed.

A shard is a range of record numbers; every process opens the data set itself.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, Pieces, Shard, accepted
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.readers.documents.jsonl import document_of


# Records are counted, not bytes: about what 64 MB of passages hold.
_SHARD_RECORDS = 100_000
_FETCH = 1024


def read(shard: Shard, bad: BadLines, fetch: Callable[[int, int], Any]) -> Iterator[Document]:
    """`fetch` gives the records of a range; options name the keys of id, title and text."""
    keys = {name: shard.option(name) for name in ("id", "title", "text")}
    for piece in shard.pieces:
        stop = piece.stop or 0
        for begin in range(piece.start, stop, _FETCH):
            records = fetch(begin, min(begin + _FETCH, stop))
            for number, record in enumerate(records, start=begin):
                place = Place(piece.file, number + 1)
                try:
                    document = document_of(_plain(record), keys, Line("", place, number))
                    taken = accepted(document, bad)
                except BadRecord as error:
                    bad.add(error, place)
                    continue
                if taken:
                    yield document


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Texts and numbers of a record, as JSON knows them."""
    plain = {}
    for key, value in record.items():
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                raise BadRecord(f"{key!r} is not UTF-8: byte 0x{value[error.start]:02x}") from None
        if isinstance(value, str | int | float):
            plain[key] = value
    return plain


def ranges(path: str, records: int, count: int | None) -> Pieces:
    count = min(count or math.ceil(records / _SHARD_RECORDS), records)
    bounds = [records * i // max(1, count) for i in range(count + 1)]
    return [(Piece(path, a, b),) for a, b in zip(bounds, bounds[1:], strict=False)]


def library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"reading data sets by name needs {module}, which is not installed; run "
            f"`pip install {package}`"
        ) from error


def loaded(what: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except UserError:
        raise
    except ModuleNotFoundError as error:
        remedy = f"; {extras.remedy('seqio')}" if "tensorflow" in str(error) else ""
        raise UserError(
            f"{what} {name!r} needs {error.name}, which is not installed{remedy}"
        ) from error
    except Exception as error:  # each library has errors of its own for names, network and disk
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{what} {name!r} cannot be loaded ({type(error).__name__}: {reason}); check the name "
            f"and the network, or give its files with another --format"
        ) from error
