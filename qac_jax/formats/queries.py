"""Queries and questions, with answers where a file has them.

    for query in read_queries("queries.jsonl"): …

The format is recognised by the file's first line unless it is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, Piece, expand, find, text_lines
from qac_jax.formats.identities import IdSet
from qac_jax.formats.registry import QUERIES, Recognise, never, sample


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    text: str
    answers: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class QueryFormat:
    """A way to store queries; the modules of `readers` list them in QUERY_FORMATS.

    read: (file, bad) -> the queries of one file.
    recognise: how sure it is that a sample of a file is its own.
    by_name: whether the file is the name of a data set, which NAME:FILE then stands for.
    """

    read: Callable[[str, BadLines], Iterator[Query]]
    recognise: Recognise = never
    by_name: bool = False


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
        raise UserError(
            f"a passage's score is given as a share of the best other one's, which is {second:g} "
            "here; expected scores above 0, such as BM25's"
        )
    result = values / best
    result[np.argmax(values)] = best / second
    return result


def read_queries(
    path: str | os.PathLike[str],
    format: str = "auto",
    *,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[Query]:
    """All queries of a file, folder, pattern or data set.

    Queries without text and the same query again are left out and counted; another query of an id
    that was there before is a bad record.
    """
    own = bad is None
    bad = BadLines(skip_bad) if bad is None else bad
    known, contents = IdSet(), IdSet()
    named = QUERIES.named(path)
    if named:
        format = named[0]
    for file in [named[1]] if named else _files(os.fspath(path)):
        reader = QUERIES.get(_format_of(file) if format == "auto" else format)
        for query in reader.read(file, bad):
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
    return expand(path, (".jsonl", ".tsv", ".txt", ".csv", ".json", ".xml"))


def _format_of(file: str) -> str:
    """The format that a file of queries looks like."""
    head = sample(file)
    if name := QUERIES.detect(head):
        return name
    raise DataError(
        f"queries of an unknown format: {len(head.columns)} columns; name one of "
        f"{', '.join(QUERIES.names())}",
        file=file,
        line=1,
    )


def line_queries(
    parse: Callable[[Line], Query | None], recognise: Recognise = never
) -> QueryFormat:
    """A format of one query a line (None: the line holds none)."""

    def read(file: str, bad: BadLines) -> Iterator[Query]:
        for line in text_lines(Piece(file), bad):
            try:
                query = parse(line)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if query is not None:
                yield query

    return QueryFormat(read, recognise)


def answers_of(given: Any) -> tuple[str, ...]:
    """Each answer once, in order; numbers are spelled out."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple) or not all(
        isinstance(a, str | int | float) for a in given
    ):
        raise BadRecord("the answers are not a list of texts")
    return tuple(dict.fromkeys(str(a) for a in given))


def number_of(line: Line) -> str:
    """The id of a query without one: its line, counted from 0 as DPR does."""
    return str((line.place.line or 1) - 1)
