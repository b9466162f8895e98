"""Queries and questions, with answers where a file has them. The format is recognised by the first
line unless it is given.
"""

import ast
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import (
    Line,
    columns,
    expand,
    find,
    json_object,
    parsed,
    parsed_objects,
    quoted_columns,
    string,
)
from qac_jax.formats.identities import IdSet
from qac_jax.formats.registry import LIKELY, NO, QUERIES, SURE, Recognise, Sample, never, sample


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    text: str
    answers: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class QueryFormat:
    """A way to store queries; modules of `readers` list theirs in QUERY_FORMATS."""

    read: Callable[[str, BadLines], Iterator[Query]]
    recognise: Recognise = never


def with_score(query: str, share: float) -> str:
    """The query as a cross-encoder reads it that also gets the first ranking's score of the
    passage, one of `shares`: in percent, before the query (Askari et al. 2023)."""
    return f"{round(100 * share)} {query}"


def shares(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Scores of a query's ranking as shares of the best other passage's: over 1 for the first.

    A score alone says less, as 20 is much for a short query and little for a long one.
    """
    values = np.asarray(scores, np.float64)
    if len(values) < 2:
        return np.ones(len(values))
    second, best = np.sort(values)[-2:]
    if second <= 0:
        raise UserError(f"the best other one's score is {second:g}; expected one above 0")
    result = values / best
    result[np.argmax(values)] = best / second
    return result


def read_queries(
    path: str | os.PathLike[str], format: str = "auto", *, bad: BadLines | None = None
) -> Iterator[Query]:
    """All queries of a file, folder or pattern. Those without text and the same again are left out
    and counted; another query of an id that was there before is a bad record.
    """
    own, bad = bad is None, BadLines() if bad is None else bad
    known, contents = IdSet(), IdSet()
    for file in _files(os.fspath(path)):
        head = sample(file) if format == "auto" else None
        name = QUERIES.detect(head) if head else format
        if head and not name:
            said = f"{len(head.columns)} columns; name one of {', '.join(QUERIES.names())}"
            raise DataError(f"queries of an unknown format: {said}", file=file, line=1)
        for query in QUERIES.get(name or "").read(file, bad):
            place = query.place or Place(file)
            if not query.id.strip():
                bad.add("the id is missing or empty", place)
            elif not query.text.strip():
                bad.leave_out("queries without text")
            elif not contents.add(f"{query.id}\t{query.text}"):
                bad.leave_out("repeated queries")
            elif not known.add(query.id):
                bad.add(f"the id of query {query.id!r} was there before", place)
            else:
                yield query
    if own and (summary := bad.summary()):
        progress.say(f"{path}: {summary}")


def _files(path: str) -> list[str]:
    if os.path.isdir(path) and (inside := find(path, "queries.jsonl", "queries.tsv")):
        return [inside]
    return expand(path, (".jsonl", ".tsv", ".txt", ".csv", ".json"))


# The formats.

_PASSAGES = '"positive_ctxs"'  # of DPR's training files
# A list in Python's syntax takes some hundred times its length when it is parsed.
_LONGEST_LIST = 1 << 20


def _one_a_line(parse: Callable[[Line], Query | None], recognise: Recognise) -> QueryFormat:
    return QueryFormat(lambda file, bad: parsed(file, bad, parse), recognise)


def _of_columns(count: int) -> Recognise:
    return lambda sample: LIKELY if len(sample.columns) == count else NO


def _answers(given: Any) -> tuple[str, ...]:
    """Each answer once, in order; numbers are spelled out."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple) or not all(
        isinstance(a, str | int | float) for a in given
    ):
        raise BadRecord("the answers are not a list of texts")
    return tuple(dict.fromkeys(str(a) for a in given))


def _asked(record: Mapping[str, Any], name: str, file: str, **meta: str) -> Query:
    """{"question", "answers": [texts, or regular expressions]}."""
    question = string(record, "question", what="question").strip()
    return Query(name, question, _answers(record.get("answers", [])), meta, Place(file))


def _number(line: Line) -> str:
    """The id of a query without one: its line, counted from 0 as DPR does."""
    return str((line.place.line or 1) - 1)


def _jsonl(line: Line) -> Query:
    """BEIR's {"_id", "text", "metadata": {"answers", …}}, and DPR's {"question", "answer"}."""
    record = json_object(line.text)
    given = record.get("metadata") or {}
    meta = dict(given) if isinstance(given, dict) else {"metadata": given}
    answers = record.get("answers", record.get("answer", meta.pop("answers", [])))
    numbered = "question" in record
    name = string(record, "_id", "id", "query_id", "qid", "text_id", what="" if numbered else "id")
    text = string(record, "text", "query", "question", what="text").strip()
    return Query(name or _number(line), text, _answers(answers), meta, line.place)


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
    if len(answers) > _LONGEST_LIST:
        raise BadRecord(f"the list of answers has more than {_LONGEST_LIST:,} characters")
    try:
        given = ast.literal_eval(answers)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise BadRecord("the answers are not a Python list of texts") from None
    return Query(_number(line), question, _answers(given), place=line.place)


def _is_dpr(sample: Sample) -> int:
    listed = len(sample.columns) == 2 and sample.columns[1].strip('" ').startswith("[")
    return SURE if listed else NO


def _dpr_training(file: str, bad: BadLines) -> Iterator[Query]:
    """The questions and answers of DPR's training files, numbered from 0 (`training.py`).

    Those without a positive passage are left out and counted: of Natural Questions 58,812 are left.
    """

    def parse(number: int, record: dict[str, Any]) -> Query | None:
        if record.get("positive_ctxs"):
            return _asked(record, str(number), file)
        bad.leave_out("questions without a positive passage")
        return None

    return parsed_objects(file, bad, parse)


def _is_array(passages: bool) -> Recognise:
    """A JSON array, with or without passages in it."""
    return lambda sample: (
        SURE if sample.head.startswith("[") and (_PASSAGES in sample.head) == passages else NO
    )


def _entityquestions(file: str, bad: BadLines) -> Iterator[Query]:
    """A JSON list for each relation; P36.test.json gives ids P36-0, P36-1, …"""
    relation = os.path.basename(file).split(".")[0]

    def parse(number: int, entry: dict[str, Any]) -> Query:
        return _asked(entry, f"{relation}-{number}", file, relation=relation)

    return parsed_objects(file, bad, parse)


def _orcas(file: str, bad: BadLines) -> Iterator[Query]:
    """ORCAS: query id, query, document id, url; a query has a line for every click."""
    known = IdSet()

    def parse(line: Line) -> Query | None:
        name, text, _, _ = columns(line.text, ("qid", "query", "docid", "url"))
        return Query(name, text.strip(), place=line.place) if known.add(name) else None

    return parsed(file, bad, parse)


QUERY_FORMATS = {
    "dpr": _one_a_line(_dpr, _is_dpr),
    "dpr_biencoder": QueryFormat(_dpr_training, _is_array(passages=True)),
    "entityquestions": QueryFormat(_entityquestions, _is_array(passages=False)),
    "jsonl": _one_a_line(_jsonl, lambda sample: NO if sample.record is None else LIKELY),
    "lines": _one_a_line(_line, _of_columns(1)),
    "orcas": QueryFormat(_orcas, _of_columns(4)),
    "tsv": _one_a_line(_tsv, _of_columns(2)),
}
