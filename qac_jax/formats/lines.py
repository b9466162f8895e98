"""What formats of one record a line have in common."""

from __future__ import annotations

import codecs
import csv
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Shard,
    accepted,
    checked,
    default_count,
)
from qac_jax.formats.files import (
    Line,
    expand,
    open_bytes,
    plain_name,
    share_out,
    text_lines,
    whole_text,
)
from qac_jax.formats.registry import Recognise, never


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
    shard: Shard, bad: BadLines, parse: Callable[[Line], Document | None]
) -> Iterator[Document]:
    """One document a line (None: the line holds none)."""
    for piece in shard.pieces:
        for line in text_lines(piece, bad):
            yield from checked(functools.partial(parse, line), line.place, bad)


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


_CHUNK = 1 << 20
# An object that is longer is taken for damage: the bracket that closes it is missing.
_LONGEST = 1 << 28
_BLANK = " \t\r\n"


def objects(file: str, bad: BadLines) -> Iterator[tuple[dict[str, Any], Place]]:
    """The objects of an array, and where they begin. What is no object is a bad record.

    Damaged JSON cannot be skipped, because nothing says where the next object begins.
    """
    for number, (value, line) in enumerate(_values(file)):
        if isinstance(value, dict):
            yield value, Place(file, line)
        else:
            bad.add(f"entry {number} is a JSON {type(value).__name__}, not an object", Place(file))


def _values(file: str) -> Iterator[tuple[Any, int]]:
    scan, decode = json.JSONDecoder().raw_decode, codecs.getincrementaldecoder("utf-8-sig")()
    with open_bytes(file) as stream:
        text, line, wanted = "", 1, _CHUNK
        began = ended = False
        while not ended:
            raw = stream.read(wanted)
            try:
                text += decode.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                raise DataError(f"not UTF-8: {error.reason}", file=file, line=line) from error
            position = 0
            while True:
                start = _skipped(text, position, _BLANK + ("," if began else ""))
                line += text.count("\n", position, start)
                position = start
                if position == len(text):
                    break
                if not began:
                    if text[position] != "[":
                        raise DataError("not a JSON array; expected [", file=file, line=line)
                    began, position = True, position + 1
                    continue
                if text[position] == "]":
                    ended = True
                    break
                try:
                    value, end = scan(text, position)
                except ValueError as error:
                    if raw and len(text) - position < _LONGEST:
                        break  # the rest of it is in the next chunk
                    raise DataError(f"invalid JSON: {error}", file=file, line=line) from error
                except RecursionError as error:
                    message = "invalid JSON: nested too deeply"
                    raise DataError(message, file=file, line=line) from error
                yield value, line
                line += text.count("\n", position, end)
                position = end
            text = text[position:]
            # Each attempt reads the object from its beginning: twice as much text for the next.
            wanted = max(_CHUNK, len(text))
            if not raw and not ended:
                raise DataError("the JSON array has no end; fetch the file again", file=file)


def _skipped(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position
