"""Layouts of queries: lines, JSON lines, tables, DPR, EntityQuestions, MRQA, ORCAS, TREC."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator

from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, Piece, text_lines, whole_text
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import columns, json_object, made_id, objects, quoted_columns, string
from qac_jax.formats.queries import Query, QueryFormat, answers_of, line_queries, number_of
from qac_jax.formats.registry import LIKELY, NO, SURE, Recognise, Sample


_PASSAGES = '"positive_ctxs"'  # of DPR's training files


def _of_columns(count: int) -> Recognise:
    return lambda sample: LIKELY if len(sample.columns) == count else NO


def _jsonl(line: Line) -> Query:
    """BEIR's: {"_id", "text", "metadata": {"answers", …}}."""
    record = json_object(line.text)
    meta = dict(record.get("metadata") or {})
    answers = record.get("answers", meta.pop("answers", []))
    return Query(
        string(record, "_id", "id", "query_id", "qid", "text_id", what="id"),
        string(record, "text", "query", what="text"),
        answers_of(answers),
        meta,
        line.place,
    )


def _tsv(line: Line) -> Query:
    """MS MARCO's and Anserini's: id, text, divided by a tab."""
    name, text = columns(line.text, ("id", "text"))
    return Query(name, text.strip(), place=line.place)


def _line(line: Line) -> Query:
    """One query a line and nothing else, numbered from 1."""
    return Query(str(line.place.line), line.text.strip(), place=line.place)


def _dpr(line: Line) -> Query:
    """DPR's: question, list of answers as Python writes it; numbered from 0."""
    question, answers = quoted_columns(line.text, ("question", "answers"))
    try:
        given = ast.literal_eval(answers)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadRecord("the answers are not a Python list of texts") from None
    return Query(number_of(line), question, answers_of(given), place=line.place)


def _is_dpr(sample: Sample) -> int:
    listed = len(sample.columns) == 2 and sample.columns[1].strip('" ').startswith("[")
    return SURE if listed else NO


def _dpr_jsonl(line: Line) -> Query:
    """DPR's as JSON lines: {"question", "answer": [regular expressions or texts]}."""
    record = json_object(line.text)
    name = string(record, "id", "qid", "_id") or number_of(line)
    answers = record.get("answers", record.get("answer", []))
    question = string(record, "question", what="question")
    return Query(name, question, answers_of(answers), place=line.place)


def _is_dpr_jsonl(sample: Sample) -> int:
    if sample.record is None or _is_mrqa(sample):
        return NO
    return SURE if '"question"' in sample.first else NO


def _dpr_training(file: str, bad: BadLines) -> Iterator[Query]:
    """The questions and answers of DPR's training files, numbered from 0 (`training.py`).

    Those without a positive passage are left out and counted: of Natural Questions 58,812 are left.
    """
    for number, (record, place) in enumerate(objects(file, bad)):
        if not record.get("positive_ctxs"):
            bad.leave_out("questions without a positive passage")
            continue
        try:
            question = string(record, "question", what="question").strip()
            answers = answers_of(record.get("answers", []))
        except BadRecord as error:
            bad.add(f"question {number}: {error}", place)
            continue
        yield Query(str(number), question, answers, place=place)


def _is_dpr_training(sample: Sample) -> int:
    return SURE if sample.head.startswith("[") and _PASSAGES in sample.head else NO


def _entityquestions(file: str, bad: BadLines) -> Iterator[Query]:
    """A JSON list for each relation; P36.test.json gives ids P36-0, P36-1, …"""
    relation = os.path.basename(file).split(".")[0]
    try:
        entries = json.loads(whole_text(file))
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg}", file=file, line=error.lineno) from error
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        try:
            if not isinstance(entry, dict):
                raise BadRecord("expected an object {question, answers}")
            question = string(entry, "question", what="question")
            answers = answers_of(entry.get("answers", entry.get("answer", [])))
        except BadRecord as error:
            bad.add(f"entry {number}: {error}", Place(file))
            continue
        yield Query(f"{relation}-{number}", question, answers, {"relation": relation}, Place(file))


def _is_entityquestions(sample: Sample) -> int:
    return SURE if sample.head.startswith("[") and _PASSAGES not in sample.head else NO


def _mrqa(file: str, bad: BadLines) -> Iterator[Query]:
    """MRQA's questions below each context; their meta names its document (document format mrqa)."""
    for line in text_lines(Piece(file), bad):
        try:
            record = json_object(line.text)
            questions = [
                Query(
                    string(qa, "qid", "id", what="question id"),
                    string(qa, "question", what="question"),
                    answers_of(qa.get("answers", [])),
                    {"document": made_id(line)},
                    line.place,
                )
                for qa in record.get("qas", [])
            ]
        except BadRecord as error:
            bad.add(error, line.place)
            continue
        yield from questions


def _is_mrqa(sample: Sample) -> int:
    if sample.record is None:
        return NO
    return SURE if '"header"' in sample.first or '"qas"' in sample.first else NO


def _orcas(file: str, bad: BadLines) -> Iterator[Query]:
    """ORCAS: query id, query, document id, url; a query has a line for every click."""
    known = IdSet()

    def parse(line: Line) -> Query | None:
        name, text, _, _ = columns(line.text, ("qid", "query", "docid", "url"))
        return Query(name, text.strip(), place=line.place) if known.add(name) else None

    return line_queries(parse).read(file, bad)


_TOPIC = re.compile(r"<(/?)top(ic)?\b([^<>]*)>")
_NUMBER = re.compile(r"number\s*=\s*[\"']?([\w.-]+)")
_FIELD = re.compile(r"<(num|title|desc|narr|query|question|narrative)>([^<]*)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:Number|Topic|Description|Narrative|Title)\s*:\s*", re.IGNORECASE)


def _trec(file: str, bad: BadLines) -> Iterator[Query]:
    """TREC topics, SGML (<top><num>…) or XML (<topic number="1"><query>…).

    The text is the title (or query); the description and narrative are in the meta.
    """
    text = whole_text(file)
    opened: re.Match[str] | None = None
    line, counted = 1, 0
    for mark in _TOPIC.finditer(text):
        if not mark[1]:
            opened = opened or mark
            continue
        if opened is None:
            continue
        line, counted = line + text.count("\n", counted, opened.start()), opened.start()
        fields = {
            name.lower(): " ".join(_LABEL.sub("", value).split())
            for name, value in _FIELD.findall(text, opened.end(), mark.start())
        }
        number = _NUMBER.search(opened[3])
        name = fields.pop("num", "") or (number[1] if number else "")
        topic = fields.pop("title", "") or fields.pop("query", "")
        yield Query(name, topic or fields.get("desc", ""), meta=fields, place=Place(file, line))
        opened = None


QUERY_FORMATS = {
    "dpr": line_queries(_dpr, _is_dpr),
    "dpr_biencoder": QueryFormat(_dpr_training, _is_dpr_training),
    "dpr_jsonl": line_queries(_dpr_jsonl, _is_dpr_jsonl),
    "entityquestions": QueryFormat(_entityquestions, _is_entityquestions),
    "jsonl": line_queries(_jsonl, lambda sample: NO if sample.record is None else LIKELY),
    "lines": line_queries(_line, _of_columns(1)),
    "mrqa": QueryFormat(_mrqa, _is_mrqa),
    "orcas": QueryFormat(_orcas, _of_columns(4)),
    "trec": QueryFormat(_trec, lambda sample: SURE if sample.head.startswith("<") else NO),
    "tsv": line_queries(_tsv, _of_columns(2)),
}
