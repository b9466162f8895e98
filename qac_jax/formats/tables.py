"""Rows of a table as documents: which columns are id, title, text and address, said or guessed.

parsed("id=nr,title=name,text=question+answer")   # {"id": "nr", …}: what --columns takes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.errors import UserError, nearest
from qac_jax.formats.documents import Document, Section
from qac_jax.formats.pages import Source, document


ROLES = ("id", "title", "text", "url")

_IDS = ("_id", "id", "docid", "doc_id", "document_id", "text_id", "pid", "key", "uid", "nr", "no")
_TITLES = ("title", "headline", "heading", "subject", "question", "name", "topic", "term")
_TEXTS = (
    "text", "contents", "content", "body", "passage", "article", "document", "answer",
    "description", "abstract", "summary", "definition", "message", "comment", "review", "notes",
    "note", "details", "sections",
)  # fmt: skip
_URLS = ("url", "link", "href", "uri", "address", "permalink", "source_url", "website")
# A column whose values are shorter than this on average is no prose.
_PROSE = 24
_PEEK = 50


class Columns(NamedTuple):
    """What each role is called in a table; `text` may join several columns."""

    id: str = ""
    title: str = ""
    text: tuple[str, ...] = ()
    url: str = ""

    def __str__(self) -> str:
        named = [f"{role}={name}" for role, name in zip(ROLES, self, strict=True) if role != "text"]
        shown = [one for one in named if not one.endswith("=")]
        return ", ".join([*shown, f"text={'+'.join(self.text)}"])


class Row(NamedTuple):
    """A record of a table and the line where it begins."""

    line: int
    values: Mapping[str, Any]


def parsed(text: str) -> dict[str, str]:
    """What --columns says: role -> column (of text: columns joined by +)."""
    chosen: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        role, equals, name = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise UserError(
                f"columns={text!r}: {item!r} is not of the form role=column; expected such as "
                f"id=nr,title=name,text=question+answer,url=link"
            )
        if role not in ROLES:
            raise UserError(
                f"columns={text!r}: {role!r} is not one of {', '.join(ROLES)} "
                f"({nearest(role, ROLES)})"
            )
        chosen[role] = name
    return chosen


def documents(source: Source, rows: Iterable[Row]) -> Iterator[Document]:
    """A document of each row; its further columns are kept as what is known of it."""
    rows = iter(rows)
    first = [row for row, _ in zip(rows, range(_PEEK), strict=False)]
    if not first:
        return
    chosen = _chosen(source, first)
    known: set[str] = set()
    for number, row in enumerate(_chained(first, rows), 1):
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
        yield document(source, f"{source.id}#{_fit(name)}", title, [Section("", body)], meta)


def _chosen(source: Source, rows: Sequence[Row]) -> Columns:
    """The columns that were asked for, where the table has them; a guess for all others."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    guess = _guessed(names, rows)
    asked = {role: _called(name, names) for role, name in source.columns.items() if role != "text"}
    texts = [_called(name.strip(), names) for name in source.columns.get("text", "").split("+")]
    absent = [role for role, name in asked.items() if not name]
    if source.columns.get("text"):
        if all(texts):
            guess = guess._replace(text=tuple(texts))
        else:
            absent.append("text")
    for role, name in asked.items():
        guess = _with(guess, role, name) if name else guess
    # A column has one role, and what was asked for comes first.
    for role in ("title", "url", "id"):
        if role not in asked and getattr(guess, role) in guess.text:
            guess = _with(guess, role, "")
    if not source.columns.get("text"):
        left = tuple(name for name in guess.text if name not in asked.values())
        guess = guess._replace(text=left or guess.text)
    missing = "".join(
        f"; no column {source.columns[role]!r}, which was asked for as {role}" for role in absent
    )
    source.bad.note(source.path, f"columns {guess}{missing}")
    return guess


def _with(columns: Columns, role: str, name: str) -> Columns:
    changed: dict[str, Any] = {**columns._asdict(), role: name}
    return Columns(**changed)


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

    name, url = usual(_IDS), usual(_URLS)
    text = usual(_TEXTS)
    title = usual(_TITLES, text)
    if not text:
        left = [one for one in names if one not in (name, url, title)]
        lengths = {
            one: sum(len(_text(row.values.get(one))) for row in rows) / len(rows) for one in left
        }
        longest = max(left, key=lambda one: lengths[one], default=title)
        if lengths.get(longest, 0) >= _PROSE or len(left) < 2:
            return Columns(name, title if title != longest else "", (longest,), url)
        # No prose at all, such as a list of parts: all columns with their names.
        return Columns(name, title, tuple(left), url)
    return Columns(name, title, (text,), url)


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


def _fit(name: str) -> str:
    """Without blanks, as in run files."""
    return "".join("_" if letter.isspace() else letter for letter in name)


def _chained(first: Sequence[Row], rows: Iterator[Row]) -> Iterator[Row]:
    yield from first
    yield from rows
