"""Tables in a folder: CSV and JSON lines.

A row is a document; which columns are its id, title, text and address is said by --columns or
guessed.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.formats.documents import Document, Section
from qac_jax.formats.readers.folder import ROLES, NotRead, PageFormat, Source, document


_IDS = ("_id", "id", "docid", "doc_id", "document_id", "text_id", "pid", "key", "uid", "nr", "no")
_TITLES = ("title", "headline", "heading", "subject", "question", "name", "topic", "term")
_TEXTS = (
    "text", "contents", "content", "body", "passage", "article", "document", "answer",
    "description", "abstract", "summary", "definition", "message", "comment", "review", "notes",
    "note", "details", "sections",
)  # fmt: skip
_URLS = ("url", "link", "href", "uri", "address", "permalink", "source_url", "website")
# What an object that is alone in its file must have to be a document.
_WHOLE = ("text", "content", "contents", "body", "passage", "article", "abstract", "sections")
# A column whose values are shorter than this on average is no prose.
_PROSE = 24
_PEEK = 50
_BROKEN, _ROWLESS = "malformed row", "table without rows"

_DIVIDERS = (",", ";", "\t", "|")
# Of one record, whose quoted fields may hold line ends.
_MOST_LINES = 200
_LONGEST_NAME = 60


class Columns(NamedTuple):
    """What each role is called in a table; `text` may join several columns."""

    id: str = ""
    title: str = ""
    text: tuple[str, ...] = ()
    url: str = ""

    def __str__(self) -> str:
        shown = {role: name for role, name in self._asdict().items() if name and role != "text"}
        return ", ".join(
            f"{role}={name}" for role, name in [*shown.items(), ("text", "+".join(self.text))]
        )


class Row(NamedTuple):
    """A record of a table and the line where it begins."""

    line: int
    values: Mapping[str, Any]


def documents(source: Source, rows: Iterable[Row]) -> Iterator[Document]:
    """A document of each row; its further columns are kept as what is known of it."""
    rows = iter(rows)
    first = list(itertools.islice(rows, _PEEK))
    chosen = _chosen(source, first) if first else Columns()
    known: set[str] = set()
    for number, row in enumerate(itertools.chain(first, rows), 1):
        title = _text(row.values.get(chosen.title))
        body = _body(row.values, chosen.text)
        if not body:
            title, body = "", title
        if not body:
            source.skip("row without text", line=row.line)
            continue
        name = _text(row.values.get(chosen.id)) or str(number)
        if name in known:
            name = f"{name}~{number}"  # an id that repeats is made one by its row
        known.add(name)
        rest = {
            key: value
            for key, value in row.values.items()
            if key not in (chosen.title, chosen.url, *chosen.text) and value not in ("", None)
        }
        meta = {"url": _text(row.values.get(chosen.url)), "row": number, "columns": rest}
        fit = "".join("_" if letter.isspace() else letter for letter in name)
        yield document(source, f"{source.id}#{fit}", title, [Section("", body)], meta)
    if not known:
        raise NotRead(_ROWLESS)


def _chosen(source: Source, rows: Sequence[Row]) -> Columns:
    """The columns that were asked for, where the table has them; a guess for all others."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    guess = _guessed(names, rows)._asdict()
    asked: dict[str, Any] = {}
    absent = []
    for role, wanted in source.columns.items():
        found = [
            _called(name.strip(), names) for name in wanted.split("+" if role == "text" else "\n")
        ]
        if all(found):
            asked[role] = tuple(found) if role == "text" else found[0]
        else:
            absent.append(role)
    # A column has one role, and what was asked for comes first.
    taken = {name for role, name in asked.items() if role != "text"}
    left = tuple(name for name in guess["text"] if name not in taken)
    guess["text"] = asked.get("text") or left or guess["text"]
    for role in ("title", "url", "id"):
        guess[role] = asked.get(role, "" if guess[role] in guess["text"] else guess[role])
    chosen = Columns(**guess)
    missing = "".join(
        f"; no column {source.columns[role]!r}, which was asked for as {role}"
        for role in ROLES
        if role in absent
    )
    source.bad.note(source.path, f"columns {chosen}{missing}")
    return chosen


def _called(name: str, names: Sequence[str]) -> str:
    """The column of this name, else of its number (from 1), else ""."""
    if name in names:
        return name
    alike = {other.casefold(): other for other in reversed(names)}
    if name.casefold() in alike:
        return alike[name.casefold()]
    return names[int(name) - 1] if name.isdecimal() and 0 < int(name) <= len(names) else ""


def _guessed(names: Sequence[str], rows: Sequence[Row]) -> Columns:
    """By the usual names; the text else by the length of the values."""
    plain = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in names[::-1]}

    def usual(words: Sequence[str], *taken: str) -> str:
        return next((plain[w] for w in words if w in plain and plain[w] not in taken), "")

    name, url, text = usual(_IDS), usual(_URLS), usual(_TEXTS)
    title = usual(_TITLES, text)
    if text:
        return Columns(name, title, (text,), url)
    left = [one for one in names if one not in (name, url, title)]
    lengths = {
        one: sum(len(_text(row.values.get(one))) for row in rows) / len(rows) for one in left
    }
    longest = max(left, key=lambda one: lengths[one], default=title)
    if lengths.get(longest, 0) >= _PROSE or len(left) < 2:
        return Columns(name, title if title != longest else "", (longest,), url)
    # No prose at all, such as a list of parts: all columns with their names.
    return Columns(name, title, tuple(left), url)


def _body(values: Mapping[str, Any], columns: Sequence[str]) -> str:
    if len(columns) == 1:
        return _text(values.get(columns[0]))
    shown = [(name, _text(values.get(name))) for name in columns]
    return "\n".join(f"{name}: {text}" for name, text in shown if text)


def _text(value: Any) -> str:
    """A value as text: sections and lists a line each."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        return "\n".join(filter(None, (_text(value.get(k)) for k in ("heading", "title", "text"))))
    return str(value).strip()


# CSV: divided by commas, semicolons, tabs or bars, with or without names of the columns. Quotes
# that never end, and rows that do not fit the names, spoil that row only.


def _read_csv(source: Source) -> Iterator[Document]:
    lines = source.text().split("\n")
    csv.field_size_limit(1 << 30)
    records = _records(source, lines, _divider(source.path, lines))
    first = next(records, None)
    if first is None:
        raise NotRead(_ROWLESS)
    names = _names(first[1])
    if not names:
        source.bad.note(source.path, "has no names of columns; they are numbered from 1")
        names = [str(number) for number in range(1, len(first[1]) + 1)]
        records = itertools.chain([first], records)
    return documents(source, _rows(source, names, records))


def _rows(
    source: Source, names: Sequence[str], records: Iterable[tuple[int, list[str]]]
) -> Iterator[Row]:
    for line, fields in records:
        while len(fields) > len(names) and not fields[-1].strip():
            fields = fields[:-1]
        if len(fields) > len(names):
            detail = f"{len(fields)} columns where the table has {len(names)}"
            source.skip(_BROKEN, detail, line)
        else:
            yield Row(line, dict(zip(names, fields, strict=False)))


def _records(source: Source, lines: Sequence[str], divider: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every record."""
    start = begin = 0

    def following() -> Iterator[str]:
        for number in range(start, len(lines)):
            if number - begin > _MOST_LINES:
                return
            yield f"{lines[number]}\n"

    while start < len(lines):
        begin = start
        reader = csv.reader(following(), delimiter=divider, strict=True, skipinitialspace=True)
        try:
            for fields in reader:
                if any(field.strip() for field in fields):
                    yield begin + 1, [field.strip() for field in fields]
                begin = start + reader.line_num
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                source.skip(_BROKEN, "a quote in it never ends", begin + 1)
            else:
                # Quotes that mean nothing, such as inches: the line as it stands.
                plain = [field.strip().strip('"') for field in lines[begin].split(divider)]
                yield begin + 1, plain
        start = begin + 1


def _divider(path: str, lines: Sequence[str]) -> str:
    """What divides the fields: a tab in .tsv, else what gives the first lines equal widths."""
    if path.lower().endswith((".tsv", ".tab")):
        return "\t"
    head = [line for line in lines[:50] if line.strip()][:20]

    def worth(divider: str) -> tuple[float, int]:
        widths = [len(next(csv.reader([line], delimiter=divider), ())) for line in head]
        if not widths or widths[0] < 2:
            return 0.0, 0
        return sum(width == widths[0] for width in widths) / len(widths), widths[0]

    best = max(_DIVIDERS, key=worth)
    return best if worth(best)[0] else ","


def _names(fields: Sequence[str]) -> list[str]:
    """The first record as names of columns; none where it looks like a row."""

    def is_number(text: str) -> bool:
        try:
            float(text.replace(",", "."))
        except ValueError:
            return False
        return True

    given = [name for name in fields if name]
    fitting = all(len(n) <= _LONGEST_NAME and not is_number(n) and "://" not in n for n in given)
    if not (given and fitting and len(set(given)) == len(given)):
        return []
    return [name or str(number) for number, name in enumerate(fields, 1)]


# JSON lines, or one JSON list of records.


def _read_json(source: Source) -> Iterator[Document]:
    text = source.text()
    whole: Any = None
    first, _, rest = text.strip().partition("\n")
    if not (rest and isinstance(_value(first), dict)):
        whole = _value(text)
    if isinstance(whole, dict):
        # Settings and the like are one object too.
        if not any(key.lower() in _WHOLE for key in whole):
            raise NotRead("JSON that is not a list of records")
        whole = [whole]
    if not isinstance(whole, list):
        return documents(source, _json_rows(source, _json_lines(text)))
    return documents(source, _json_rows(source, enumerate(whole, 1)))


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _value(line)


def _json_rows(source: Source, values: Iterable[tuple[int, Any]]) -> Iterator[Row]:
    for number, value in values:
        if isinstance(value, dict):
            yield Row(number, value)
        elif isinstance(value, Exception):
            source.skip(_BROKEN, " ".join(f"invalid JSON: {value}".split())[:200], number)
        else:
            source.skip(_BROKEN, "is not an object {…}", number)


def _value(text: str) -> Any:
    """A JSON value without NaN and infinities, which JSON does not have; or what is wrong."""
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        return error


PAGE_FORMATS = {
    "csv": PageFormat((".csv", ".tsv", ".tab", ".psv"), _read_csv),
    "jsonl": PageFormat((".jsonl", ".ndjson", ".json"), _read_json),
}
