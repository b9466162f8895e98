"""Queries and questions, with answers where a file has them.

    for query in read_queries("queries.jsonl"): …

The format is told by the file's name and first line unless it is given.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax.errors import DataError, UserError, nearest
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, Piece, expand, find, open_bytes, text_lines
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import (
    columns,
    json_object,
    made_id,
    quoted_columns,
    string,
)


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    text: str
    answers: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = field(default=None, compare=False)


def with_score(query: str, share: float) -> str:
    """What a cross-encoder reads that is told a first ranking's score of the passage, one of
    `shares`: in percent, before the query (Askari et al. 2023)."""
    return f"{round(100 * share)} {query}"


def shares(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Scores of a query's ranking as shares of the best other passage's: over 1 for the first.

    A score alone says less, as 20 is much for a short query and little for a long one.
    """
    found = np.asarray(scores, np.float64)
    if len(found) < 2:
        return np.ones(len(found))
    second, best = np.sort(found)[-2:]
    if second <= 0:
        raise UserError(
            f"a passage's score is told as a share of the best other one's, which is {second:g} "
            "here; expected scores above 0, such as BM25's"
        )
    result = found / best
    result[np.argmax(found)] = best / second
    return result


def read_queries(
    path: str | os.PathLike[str],
    format: str = "auto",
    *,
    skip_bad: int = 0,
    bad: BadLines | None = None,
) -> Iterator[Query]:
    """All queries of a file, folder or pattern. An id that repeats is a bad record."""
    bad = BadLines(skip_bad) if bad is None else bad
    known = IdSet()
    for file in _files(os.fspath(path)):
        for query in _reader(format, file)(file, bad):
            place = query.place or Place(file)
            if not query.id.strip():
                bad.add("the id is missing or empty", place)
            elif not query.text.strip():
                bad.add(f"the text of query {query.id!r} is empty", place)
            elif not known.add(query.id):
                bad.add(f"the id of query {query.id!r} was there before", place)
            else:
                yield query


def _files(path: str) -> list[str]:
    if os.path.isdir(path) and (inside := find(path, "queries.jsonl", "queries.tsv")):
        return [inside]
    return expand(path, (".jsonl", ".tsv", ".txt", ".csv", ".json", ".xml"))


def _reader(format: str, file: str) -> Callable[[str, BadLines], Iterator[Query]]:
    if format != "auto" and format not in QUERY_FORMATS:
        raise UserError(f"unknown query format {format!r}; {nearest(format, QUERY_FORMATS)}")
    return QUERY_FORMATS[detect(file) if format == "auto" else format]


def detect(file: str) -> str:
    """Which of the formats a file of queries has."""
    with open_bytes(file) as stream:
        head = stream.read(1 << 16).decode(errors="replace").removeprefix("\ufeff").lstrip()
    first = head.split("\n", 1)[0]
    if head.startswith("["):
        return "entityquestions"
    if head.startswith("{"):
        if '"header"' in first or '"qas"' in first:
            return "mrqa"
        return "dpr_jsonl" if '"question"' in first else "jsonl"
    if head.startswith("<"):
        return "trec"
    fields = first.rstrip("\r").split("\t")
    if len(fields) == 2:
        return "dpr" if fields[1].strip('" ').startswith("[") else "tsv"
    if len(fields) == 4:
        return "orcas"
    if len(fields) == 1:
        return "lines"
    raise DataError(
        f"queries of an unknown format: {len(fields)} columns; name one of "
        f"{', '.join(QUERY_FORMATS)}",
        file=file,
        line=1,
    )


def _jsonl(file: str, bad: BadLines) -> Iterator[Query]:
    """BEIR: {"_id", "text", "metadata": {"answers", …}}."""

    def parse(line: Line) -> Query:
        record = json_object(line.text)
        meta = dict(record.get("metadata") or {})
        answers = record.get("answers", meta.pop("answers", []))
        return Query(
            string(record, "_id", "id", "query_id", "qid", "text_id", what="id"),
            string(record, "text", "query", what="text"),
            _answers(answers),
            meta,
            line.place,
        )

    return _each(file, bad, parse)


def _tsv(file: str, bad: BadLines) -> Iterator[Query]:
    """MS MARCO and Anserini: id, text."""

    def parse(line: Line) -> Query:
        name, text = columns(line.text, ("id", "text"))
        return Query(name, text.strip(), place=line.place)

    return _each(file, bad, parse)


def _lines(file: str, bad: BadLines) -> Iterator[Query]:
    """One query a line, numbered from 1."""
    return _each(
        file, bad, lambda line: Query(str(line.place.line), line.text.strip(), place=line.place)
    )


def _dpr(file: str, bad: BadLines) -> Iterator[Query]:
    """DPR: question, list of answers as Python writes it; numbered from 0 as DPR does."""

    def parse(line: Line) -> Query:
        question, answers = quoted_columns(line.text, ("question", "answers"))
        try:
            given = ast.literal_eval(answers)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise BadRecord("the answers are not a Python list of texts") from None
        return Query(_number(line), question, _answers(given), place=line.place)

    return _each(file, bad, parse)


def _dpr_jsonl(file: str, bad: BadLines) -> Iterator[Query]:
    """{"question", "answer": [regular expressions or texts]}."""

    def parse(line: Line) -> Query:
        record = json_object(line.text)
        name = string(record, "id", "qid", "_id") or _number(line)
        answers = record.get("answers", record.get("answer", []))
        question = string(record, "question", what="question")
        return Query(name, question, _answers(answers), place=line.place)

    return _each(file, bad, parse)


def _entityquestions(file: str, bad: BadLines) -> Iterator[Query]:
    """A JSON list for each relation; P36.test.json gives ids P36-0, P36-1, …"""
    relation = os.path.basename(file).split(".")[0]
    with open_bytes(file) as stream:
        raw = stream.read()
    try:
        entries = json.loads(raw)
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg}", file=file, line=error.lineno) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"not UTF-8: byte 0x{raw[error.start]:02x}", file=file, line=line
        ) from error
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        try:
            if not isinstance(entry, dict):
                raise BadRecord("expected an object {question, answers}")
            question = string(entry, "question", what="question")
            answers = _answers(entry.get("answers", entry.get("answer", [])))
        except BadRecord as error:
            bad.add(f"entry {number}: {error}", Place(file))
            continue
        meta = {"relation": relation}
        yield Query(f"{relation}-{number}", question, answers, meta, Place(file))


def _mrqa(file: str, bad: BadLines) -> Iterator[Query]:
    """The questions below each context; their meta names its document (format "mrqa")."""
    for line in text_lines(Piece(file), bad):
        try:
            record = json_object(line.text)
            questions = [
                Query(
                    string(qa, "qid", "id", what="question id"),
                    string(qa, "question", what="question"),
                    _answers(qa.get("answers", [])),
                    {"document": made_id(line)},
                    line.place,
                )
                for qa in record.get("qas", [])
            ]
        except BadRecord as error:
            bad.add(error, line.place)
            continue
        yield from questions


def _orcas(file: str, bad: BadLines) -> Iterator[Query]:
    """ORCAS: query id, query, document id, url; a query has a line for every click."""
    known = IdSet()

    def parse(line: Line) -> Query | None:
        name, text, _, _ = columns(line.text, ("qid", "query", "docid", "url"))
        return Query(name, text.strip(), place=line.place) if known.add(name) else None

    return _each(file, bad, parse)


_TOPIC = re.compile(r"<top(ic)?\b(?P<attributes>[^>]*)>(?P<body>.*?)</top(?(1)ic)>", re.DOTALL)
_NUMBER = re.compile(r"number\s*=\s*[\"']?([\w.-]+)")
_FIELD = re.compile(r"<(num|title|desc|narr|query|question|narrative)>([^<]*)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:Number|Topic|Description|Narrative|Title)\s*:\s*", re.IGNORECASE)


def _trec(file: str, bad: BadLines) -> Iterator[Query]:
    """TREC topics, SGML (<top><num>…) or XML (<topic number="1"><query>…).

    The text is the title (or query); the description and narrative are in the meta.
    """
    with open_bytes(file) as stream:
        raw = stream.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"not UTF-8: byte 0x{raw[error.start]:02x}", file=file, line=line
        ) from error
    for match in _TOPIC.finditer(text):
        place = Place(file, text.count("\n", 0, match.start()) + 1)
        fields = {
            name.lower(): " ".join(_LABEL.sub("", value).split())
            for name, value in _FIELD.findall(match["body"])
        }
        number = _NUMBER.search(match["attributes"])
        name = fields.pop("num", "") or (number[1] if number else "")
        topic = fields.pop("title", "") or fields.pop("query", "")
        yield Query(name, topic or fields.get("desc", ""), meta=fields, place=place)


QUERY_FORMATS: dict[str, Callable[[str, BadLines], Iterator[Query]]] = {
    "jsonl": _jsonl,
    "tsv": _tsv,
    "lines": _lines,
    "trec": _trec,
    "dpr": _dpr,
    "dpr_jsonl": _dpr_jsonl,
    "entityquestions": _entityquestions,
    "mrqa": _mrqa,
    "orcas": _orcas,
}


def _each(file: str, bad: BadLines, parse: Callable[[Line], Query | None]) -> Iterator[Query]:
    for line in text_lines(Piece(file), bad):
        try:
            query = parse(line)
        except BadRecord as error:
            bad.add(error, line.place)
            continue
        if query is not None:
            yield query


def _answers(given: Any) -> tuple[str, ...]:
    """Each answer once, in order; numbers are spelled out."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple) or not all(
        isinstance(a, str | int | float) for a in given
    ):
        raise BadRecord("the answers are not a list of texts")
    return tuple(dict.fromkeys(str(a) for a in given))


def _number(line: Line) -> str:
    return str((line.place.line or 1) - 1)
