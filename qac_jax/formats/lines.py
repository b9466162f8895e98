"""What formats of one record a line have in common."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Shard,
    accepted,
    default_count,
)
from qac_jax.formats.files import Line, expand, plain_name, share_out, text_lines
from qac_jax.formats.samples import Recognise, never


NO_TITLE = "-"

_LONGEST_FIELD = 1 << 30
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def line_format(
    parse: Callable[[Line, Mapping[str, str]], Document | None],
    suffixes: Sequence[str],
    options: Mapping[str, str] | None = None,
    recognise: Recognise = never,
) -> DocumentFormat:
    """A format of one document a line, in files with these suffixes.

    `parse` takes a line and the format's options; None: the line holds no document (a header).
    """

    def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
        return share_lines(path, count, suffixes)

    def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
        chosen = dict(shard.options)
        return read_lines(shard, bad, lambda line: parse(line, chosen))

    return DocumentFormat(share, read, options or {}, recognise)


def share_lines(path: str, count: int | None, suffixes: Sequence[str]) -> Pieces:
    files = expand(path, suffixes)
    return share_out(files, count or default_count(files))


def read_lines(
    shard: Shard,
    bad: BadLines,
    parse: Callable[[Line], Document | None],
) -> Iterator[Document]:
    """One document a line (None: the line holds none)."""
    for piece in shard.pieces:
        for line in text_lines(piece, bad):
            try:
                document = parse(line)
                taken = document is not None and accepted(document, bad)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if document is not None and taken:
                yield document


def columns(text: str, names: Sequence[str]) -> list[str]:
    """The fields of a tab-separated line."""
    fields = text.split("\t")
    if len(fields) != len(names):
        raise BadRecord(
            f"{len(fields)} columns; expected {len(names)} divided by tabs: {', '.join(names)}"
        )
    return fields


def quoted_columns(text: str, names: Sequence[str]) -> list[str]:
    """The same for files written by Python's csv module: quotes around fields that hold quotes."""
    if '"' not in text:
        return columns(text, names)
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        fields = next(csv.reader([text], delimiter="\t", strict=True))
    except csv.Error as error:
        raise BadRecord(f"wrongly quoted: {error}") from None
    return columns("\t".join(field.replace("\t", " ") for field in fields), names)


def _no_number(text: str) -> float:
    raise BadRecord(f"{text} is not a number in JSON; write null where there is none")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadRecord(f"the number {text[:40]} is too large")
    return number


# NaN, Infinity and 1e999 could not be written again.
_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text)
    except ValueError as error:
        raise BadRecord(f"invalid JSON: {error}") from None
    except RecursionError:
        raise BadRecord("invalid JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise BadRecord(f"a JSON {type(value).__name__}; expected an object {{…}} on each line")
    # Escapes can spell halves of surrogate pairs, which no UTF-8 file can hold.
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise BadRecord(f"half a surrogate pair (\\u{half:04x}) in a JSON string") from None
    return value


def string(record: Mapping[str, Any], *keys: str, what: str = "") -> str:
    """The first of these keys as text; numbers are spelled out (ids often are)."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise BadRecord(f"{key!r} is a {type(value).__name__}; expected text")
    if what:
        raise BadRecord(
            f"no {what}: expected the key {' or '.join(map(repr, keys))}, found "
            f"{', '.join(map(repr, list(record)[:8])) or 'none'}"
        )
    return ""


def table_passage(name: str, title: str, text: str, line: Line) -> Document:
    """A passage of a table as MS MARCO's are: `-` stands for a missing title."""
    title = "" if title == NO_TITLE else title.strip()
    return Document(name, title, passages=(Passage(name, title, text),), place=line.place)


def made_id(line: Line) -> str:
    """An id for a record without one: file and byte, so the same in however many shards."""
    return f"{os.path.basename(plain_name(line.place.file))}@{line.offset}"
