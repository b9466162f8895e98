"""Tables divided by commas, semicolons, tabs or bars, with or without names of their columns.

A row is a document. Quotes that never end, and rows that do not fit the names, spoil that row only.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from qac_jax.formats.documents import Document
from qac_jax.formats.pages import NotRead, PageFormat, Source
from qac_jax.formats.tables import Row, documents


_DIVIDERS = (",", ";", "\t", "|")
# A quoted field may hold line ends, up to so many characters; so many quotes may end it.
_CHARACTERS, _ENDS = 1 << 18, 50
# After so many quotes without an end a file is read as one without quoted line ends.
_PATIENCE = 20
_LONGEST_NAME = 60
_PEEK = 50
_OPEN = "unexpected end of data"


def read(source: Source) -> Iterator[Document]:
    lines = source.text().split("\n")
    csv.field_size_limit(1 << 30)
    divider = _divider(source.path, lines)
    records = _without_preamble(source, _records(source, lines, divider))
    first = next(records, None)
    if first is None:
        raise NotRead("table without rows")
    names = _names(first[1])
    if names is None:
        source.bad.note(source.path, "has no names of columns; they are numbered from 1")
        width = len(first[1])
        rows = _rows(source, [str(n) for n in range(1, width + 1)], records, first)
    else:
        rows = _rows(source, names, records)
    found = False
    for document in documents(source, rows):
        found = True
        yield document
    if not found:
        raise NotRead("table without rows")


def _without_preamble(
    source: Source, records: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    """The table without what stands above it: a heading, remarks, of another width than it."""
    head = list(itertools.islice(records, _PEEK))
    plain = [fields for _, fields in head if not fields[0].startswith("#")]
    widths = Counter(map(len, plain or (fields for _, fields in head)))
    usual = max(widths, key=lambda width: widths[width], default=1)
    begin = 0
    while begin < len(head) and head[begin][1][0].startswith("#") and len(head[begin][1]) < usual:
        begin += 1
    if 2 * widths[usual] > len(plain) > 1 and usual > 1:
        first = next(n for n, (_, fields) in enumerate(head) if len(fields) == usual)
        if all(len(fields) < usual for _, fields in head[:first]):
            begin = first
    for line, fields in head[:begin]:
        source.skip("line above a table", " ".join(fields)[:100], line)
    yield from head[begin:]
    yield from records


def _rows(
    source: Source,
    names: Sequence[str],
    records: Iterator[tuple[int, list[str]]],
    first: tuple[int, list[str]] | None = None,
) -> Iterator[Row]:
    def row(line: int, fields: list[str]) -> Row | None:
        while len(fields) > len(names) and not fields[-1].strip():
            fields = fields[:-1]
        if len(fields) > len(names):
            detail = f"{len(fields)} columns where the table has {len(names)}"
            source.skip("malformed row", detail, line)
            return None
        return Row(line, dict(zip(names, fields, strict=False)))

    if first is not None and (one := row(*first)) is not None:
        yield one
    for line, fields in records:
        if (one := row(line, fields)) is not None:
            yield one


def _records(source: Source, lines: Sequence[str], divider: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every record."""
    number, patience = 0, _PATIENCE
    while number < len(lines):
        start, line = number, lines[number]
        number += 1
        if not line.strip() or (set(line) <= {divider, " "}):
            continue
        fields, error = _fields(line, divider)
        if fields is None and error == _OPEN and patience:
            stop, size, ends = number, len(line), 0
            while fields is None and stop < len(lines):
                size += len(lines[stop]) + 1
                stop += 1
                if size > _CHARACTERS or ends > _ENDS:
                    break
                if '"' in lines[stop - 1]:
                    ends += 1
                    fields, error = _fields("\n".join(lines[start:stop]), divider)
                    if error and error != _OPEN:
                        break
            if fields is None:
                patience -= 1
            else:
                number = stop
        if fields is None:
            # Quotes that mean nothing, such as inches: the line as it stands.
            fields = [field.strip().strip('"') for field in line.split(divider)]
            if error == _OPEN:
                source.skip("malformed row", "a quote in it never ends", start + 1)
                continue
        yield start + 1, fields


def _fields(text: str, divider: str) -> tuple[list[str] | None, str]:
    """The fields of one record, or what is wrong with it."""
    try:
        # With line ends, which are part of quoted fields.
        parts = text.splitlines(keepends=True) if "\n" in text else [text]
        (fields,) = csv.reader(parts, delimiter=divider, strict=True, skipinitialspace=True)
        return [field.strip() for field in fields], ""
    except (csv.Error, ValueError) as error:
        return None, str(error)


def _divider(path: str, lines: Sequence[str]) -> str:
    """What divides the fields: a tab in .tsv, else what gives the first lines equal widths."""
    if path.lower().endswith((".tsv", ".tab")):
        return "\t"
    head = [line for line in lines[:50] if line.strip()][:20]

    def worth(divider: str) -> tuple[float, int]:
        widths = [len(_fields(line, divider)[0] or ()) for line in head]
        if not widths or widths[0] < 2:
            return 0.0, 0
        return sum(width == widths[0] for width in widths) / len(widths), widths[0]

    best = max(_DIVIDERS, key=worth)
    return best if worth(best)[0] else ","


def _names(fields: Sequence[str]) -> list[str] | None:
    """The first record as names of columns; None where it looks like a row."""
    plain = [field.strip() for field in fields]
    looks = all(
        name and len(name) <= _LONGEST_NAME and not _number(name) and "://" not in name
        for name in (plain if len(plain) < 2 else [p for p in plain if p])
    )
    if not looks or len({*filter(None, plain)}) < len([*filter(None, plain)]):
        return None
    return [name or str(number) for number, name in enumerate(plain, 1)]


def _number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


FORMAT = PageFormat((".csv", ".tsv", ".tab", ".psv"), read)
