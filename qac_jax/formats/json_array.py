"""One large JSON array of objects, read object by object: DPR's training files have gigabytes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.files import open_bytes


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
