"""Tables in a folder, CSV, JSON lines, Parquet: a row is a document, columns named or guessed."""

import collections
import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Section
from qac_jax.formats.files import LONGEST_FILE, LONGEST_LINE, TABLES, json_object, parsed
from qac_jax.formats.readers.documents import IDS, TEXTS, TITLES
from qac_jax.formats.readers.folder import ROLES, NotRead, PageFormat, Source, document


# What columns are usually called, beside the names that collections have.
_USUAL: dict[str, tuple[str, ...]] = {
    "id": (*IDS, "document_id", "key", "uid", "nr", "no"),
    "url": ("url", "link", "href", "uri", "address", "permalink", "source_url", "website"),
    "text": (
        *TEXTS, "document", "answer", "description", "abstract", "summary", "definition",
        "message", "comment", "review", "notes", "note", "details",
    ),
    "title": (*TITLES, "heading", "subject", "question", "name", "topic", "term"),
}  # fmt: skip
# What an object that is alone in its file must have to be a document.
_WHOLE = (*TEXTS, "abstract")
# A column whose values are shorter than this on average is no prose.
_PROSE = 24
_PEEK = 50
_BROKEN, _ROWLESS = "malformed row", "table without rows"

# A name of a column, which every row may repeat, has no more characters: else the column's number.
_LONGEST_NAME = 200
# Lines of one record, whose quoted fields may hold line ends.
_MOST_LINES = 200
# After this number of quotes that are not closed, each record is a line.
_IN_VAIN = 100
# What each role is called in a table; only the text may join several columns.
Columns = dict[str, list[str]]


class Row(NamedTuple):
    """A record of a table and the line where it begins."""

    line: int
    values: Mapping[str, Any]


def documents(source: Source, rows: Iterable[Row]) -> Iterator[Document]:
    """A document of each row; its further columns are kept as what is known of it."""
    rows = iter(rows)
    first = list(itertools.islice(rows, _PEEK))
    chosen = _chosen(source, first) if first else {}
    places = {role: {name: i for i, name in enumerate(names)} for role, names in chosen.items()}
    used = {name for role in ("title", "url", "text") for name in chosen.get(role, ())}
    known: set[str] = set()
    for number, row in enumerate(itertools.chain(first, rows), 1):
        values = {role: _joined(row.values, where) for role, where in places.items()}
        title, body = values.get("title", ""), values.get("text", "")
        title, body = (title, body) if body else ("", title)
        if not body:
            source.skip("row without text", line=row.line)
            continue
        name = values.get("id") or str(number)
        name = "".join("_" if letter.isspace() else letter for letter in name)
        while name in known:
            name = f"{name}~{number}"  # an id that repeats is made one by its row
        known.add(name)
        rest = {k: v for k, v in row.values.items() if k not in used and v not in ("", None)}
        meta = {"url": values.get("url", ""), "row": number, "columns": rest}
        yield document(source, f"{source.id}#{name}", title, [Section("", body)], meta)
    if not known:
        raise NotRead(_ROWLESS)


def _chosen(source: Source, rows: Sequence[Row]) -> Columns:
    """The columns that were asked for, where the table has them; a guess for all others. A column
    has one role, and what was asked for comes first."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    chosen: Columns = {}
    missing = ""
    for role, wanted in source.columns.items():
        parts = wanted.split("+") if role == "text" else [wanted]
        found = [_called(part.strip(), names) for part in parts]
        if all(found):
            chosen[role] = found
        else:
            missing += f"; no column {wanted!r}, which was asked for as {role}"
    taken = {name for columns in chosen.values() for name in columns}
    for role, guess in _guessed([name for name in names if name not in taken], rows).items():
        chosen.setdefault(role, guess)
    shown = ", ".join(f"{role}={'+'.join(chosen[role])}" for role in ROLES if chosen.get(role))
    source.note(f"columns {shown}{missing}")
    return chosen


def _called(name: str, names: Sequence[str]) -> str:
    """The column of this name, else of its number (from 1), else ""."""
    alike = {other.casefold(): other for other in reversed(names)}
    found = name if name in names else alike.get(name.casefold(), "")
    numbered = name.isdecimal() and 0 < int(name) <= len(names)
    return found or (names[int(name) - 1] if numbered else "")


def _guessed(names: Sequence[str], rows: Sequence[Row]) -> Columns:
    """By the usual names; the text else by the length of the values."""
    plain = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in names[::-1]}
    found: Columns = {}
    for role, words in _USUAL.items():
        usual = (plain[word] for word in words if word in plain)
        name = next((name for name in usual if [name] not in found.values()), "")
        found |= {role: [name]} if name else {}
    if "text" in found:
        return found
    left = [name for name in names if [name] not in found.values()]
    lengths = {n: sum(len(_text(row.values.get(n))) for row in rows) / len(rows) for n in left}
    longest = max(left, key=lambda name: lengths[name], default="")
    # Without prose, such as in a list of parts: all columns with their names.
    prose = lengths.get(longest, 0) >= _PROSE or len(left) == 1
    return found | ({"text": [longest] if prose else left} if left else {})


def _joined(values: Mapping[str, Any], places: Mapping[str, int]) -> str:
    """The values of columns in their order; looks at no more columns than the row has."""
    there = sorted((name for name in values if name in places), key=places.__getitem__)
    shown = {name: _text(values[name]) for name in there}
    if len(places) == 1:
        return "".join(shown.values())
    return "\n".join(f"{name}: {text}" for name, text in shown.items() if text)


def _text(value: Any) -> str:
    """A value as text: lists a line each."""
    if value is None or isinstance(value, bool | dict):
        return ""
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    return str(value).strip()


# CSV: divided by commas, semicolons, tabs or bars, below a line with the names of the columns.
# Quotes that never end, and rows that do not fit the names, spoil that row only.


def _read_csv(source: Source) -> Iterator[Document]:
    lines = source.text(most=LONGEST_FILE).split("\n")
    csv.field_size_limit(1 << 30)
    head = next(filter(str.strip, lines))
    divider = "\t" if source.path.lower().endswith(".tsv") else max(",;\t|", key=head.count)
    records = _records(source, lines, divider)
    _, fields = next(records, (0, []))
    counts = collections.Counter(fields)
    names = [
        name if counts[name] == 1 and 0 < len(name) <= _LONGEST_NAME else str(number)
        for number, name in enumerate(fields, 1)
    ]
    return documents(source, _rows(source, names, records))


def _rows(
    source: Source, names: Sequence[str], records: Iterable[tuple[int, list[str]]]
) -> Iterator[Row]:
    for line, fields in records:
        if any(fields[len(names) :]):
            detail = f"{len(fields)} columns where the table has {len(names)}"
            source.skip(_BROKEN, detail, line)
        else:
            yield Row(line, dict(zip(names, fields, strict=False)))


def _records(source: Source, lines: Sequence[str], divider: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every record."""
    start = begin = 0
    again = 0  # lines that were read in vain, behind quotes that never end

    def following() -> Iterator[str]:
        for number in range(start, len(lines)):
            if number - begin > (_MOST_LINES if again < _IN_VAIN * _MOST_LINES else 0):
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
                again += start + reader.line_num - begin
            else:
                # Quotes that mean nothing, such as inches: the line as it stands.
                yield begin + 1, [one.strip().strip('"') for one in lines[begin].split(divider)]
        start = begin + 1


# JSON lines, or one JSON list of records.


def _read_json(source: Source) -> Iterator[Document]:
    text = source.text(most=LONGEST_FILE)
    first, _, rest = text.strip().partition("\n")
    whole = None if rest and isinstance(_value(first), dict) else _value(text)
    if isinstance(whole, dict):  # settings and the like, or a document
        if not any(key.lower() in _WHOLE for key in whole):
            raise NotRead("JSON that is not a list of records")
        whole = [whole]
    if isinstance(whole, list):
        return documents(source, _json_rows(source, enumerate(whole, 1)))
    lines = enumerate(text.split("\n"), 1)
    values = ((number, _value(line)) for number, line in lines if line.strip())
    return documents(source, _json_rows(source, values))


def _json_rows(source: Source, values: Iterable[tuple[int, Any]]) -> Iterator[Row]:
    for number, value in values:
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            said = f"invalid JSON: {value}" if isinstance(value, Exception) else "not an object {…}"
            source.skip(_BROKEN, " ".join(said.split())[:200], number)


def _value(text: str) -> Any:
    """A JSON value without NaN and infinities, which JSON does not have; or what is wrong."""
    if len(text) > LONGEST_LINE:
        return ValueError(f"more than {LONGEST_LINE:,} characters; write an object a line")
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        return error


def _read_table(source: Source) -> Iterator[Document]:
    bad = BadLines()
    rows = parsed(source.file, bad, lambda line: Row(line.place.line or 0, json_object(line.text)))
    try:
        yield from documents(source, rows)
    except UserError as error:  # damage, or the extra is missing
        raise NotRead("a table that cannot be read", str(error)) from None


PAGE_FORMATS = {
    "csv": PageFormat((".csv", ".tsv"), _read_csv),
    "jsonl": PageFormat((".jsonl", ".ndjson", ".json"), _read_json),
    "parquet": PageFormat(TABLES, _read_table),
}
