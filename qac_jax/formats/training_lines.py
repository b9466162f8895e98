"""Training files that hold their texts: Tevatron's JSON lines and RocketQA's tables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from qac_jax.errors import UserError, nearest
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import Line, Piece, expand, text_lines
from qac_jax.formats.lines import json_object, string
from qac_jax.formats.readers.tevatron import passage_of


TRAINING_FORMATS = ("tevatron", "rocketqa")

_NO_TITLE = "-"


class TrainingLine(NamedTuple):
    """A question with passages. RocketQA's have no ids: they are empty there."""

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...]


def read_training_lines(
    path: str | os.PathLike[str],
    format: str = "tevatron",
    *,
    skip_bad: int = 0,
    bad: BadLines | None = None,
) -> Iterator[TrainingLine]:
    """`rocketqa` reads dual.train.tsv (six columns: question, positive's title and text,
    negative's title and text, 0) and cross.train.tsv (four: question, title, text, label);
    neighbouring lines of one question become one.
    """
    if format not in TRAINING_FORMATS:
        raise UserError(
            f"unknown format {format!r} of training lines; {nearest(format, TRAINING_FORMATS)}"
        )
    bad = BadLines(skip_bad) if bad is None else bad
    for file in expand(path, (".jsonl", ".json") if format == "tevatron" else (".tsv",)):
        yield from _tevatron(file, bad) if format == "tevatron" else _rocketqa(file, bad)


def _tevatron(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    for line in text_lines(Piece(file), bad):
        try:
            record = json_object(line.text)
            parsed = TrainingLine(
                string(record, "query_id", "qid", what="query id"),
                string(record, "query", what="query"),
                tuple(passage_of(p) for p in record.get("positive_passages") or []),
                tuple(passage_of(p) for p in record.get("negative_passages") or []),
            )
            if not parsed.query.strip():
                raise BadRecord(f"the text of query {parsed.query_id!r} is empty")
            if not parsed.positives:
                raise BadRecord(f"query {parsed.query_id!r} has no positive passage")
        except BadRecord as error:
            bad.add(error, line.place)
            continue
        yield parsed


def _rocketqa(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    for query, group in itertools.groupby(_rows(file, bad), key=lambda row: row[0]):
        rows = list(group)
        positives = dict.fromkeys(p for row in rows for p in row[1])
        negatives = dict.fromkeys(p for row in rows for p in row[2])
        yield TrainingLine("", query, tuple(positives), tuple(negatives))


def _rows(
    file: str, bad: BadLines
) -> Iterator[tuple[str, tuple[Passage, ...], tuple[Passage, ...]]]:
    for line in text_lines(Piece(file), bad):
        try:
            yield _row(line)
        except BadRecord as error:
            bad.add(error, line.place)


def _row(line: Line) -> tuple[str, tuple[Passage, ...], tuple[Passage, ...]]:
    fields = line.text.split("\t")
    if len(fields) not in (4, 6):
        raise BadRecord(
            f"{len(fields)} columns; expected 6 (question, title, positive, title, negative, 0) "
            f"or 4 (question, title, passage, label)"
        )
    query = fields[0].strip()
    passages = [
        _passage(title, text) for title, text in zip(fields[1:-1:2], fields[2::2], strict=False)
    ]
    if not query or not all(p.text for p in passages):
        raise BadRecord("the question or a passage is empty")
    if len(fields) == 6:
        return query, (passages[0],), (passages[1],)
    if fields[3] not in ("0", "1"):
        raise BadRecord(f"the label {fields[3]!r} is neither 0 nor 1")
    return (query, (passages[0],), ()) if fields[3] == "1" else (query, (), (passages[0],))


def _passage(title: str, text: str) -> Passage:
    return Passage("", "" if title == _NO_TITLE else title.strip(), text.strip())
