"""JSON lines, or one JSON list of records: a record is a document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import NotRead, PageFormat, Source
from qac_jax.formats.tables import Row, documents


# What an object that is alone in its file must have to be a document.
_TEXTS = ("text", "content", "contents", "body", "passage", "article", "abstract", "sections")
_BROKEN = "malformed row"


def read(source: Source) -> Iterator[Document]:
    text = source.text()
    whole = _whole(text)
    if isinstance(whole, dict):
        # Settings and the like are one object too.
        if not any(key.lower() in _TEXTS for key in whole):
            raise NotRead("JSON that is not a list of records")
        whole = [whole]
    rows = _items(source, whole) if isinstance(whole, list) else _lines(source, text)
    found = False
    for document in documents(source, rows):
        found = True
        yield document
    if not found:
        raise NotRead("table without rows")


def _whole(text: str) -> Any:
    """The value that is the whole file; None where each line is one."""
    first, _, rest = text.strip().partition("\n")
    if rest and _is_object(first):
        return None
    try:
        return _value(text)
    except (ValueError, RecursionError):
        return None


def _items(source: Source, whole: list[Any]) -> Iterator[Row]:
    for number, value in enumerate(whole, 1):
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            source.skip(_BROKEN, "is not an object {…}", number)


def _lines(source: Source, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = _value(line)
        except (ValueError, RecursionError) as error:
            source.skip(_BROKEN, " ".join(f"invalid JSON: {error}".split())[:200], number)
            continue
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            source.skip(_BROKEN, "is not an object {…}", number)


def _is_object(line: str) -> bool:
    try:
        return isinstance(_value(line), dict)
    except (ValueError, RecursionError):
        return False


def _value(text: str) -> Any:
    """Without NaN and infinities, which JSON does not have."""
    return json.loads(text, parse_constant=lambda name: None)


FORMAT = PageFormat((".jsonl", ".ndjson", ".json"), read)
