"""Layouts of training lines, which hold questions with their passages: Tevatron, RocketQA, DPR."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import Line, Piece, text_lines
from qac_jax.formats.lines import NO_TITLE, json_object, objects, string
from qac_jax.formats.readers.documents import passage_of
from qac_jax.formats.training import TrainingFormat, TrainingLine


Row = tuple[str, tuple[Passage, ...], tuple[Passage, ...]]


def _tevatron(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    """{"query_id", "query", "positive_passages", "negative_passages"} a line."""
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
    """RocketQA's tables. Neighbouring lines of one question become one.

    dual.train.tsv has question, positive's title and text, negative's title and text, 0;
    cross.train.tsv has question, title, text, label.
    """

    def rows() -> Iterator[Row]:
        for line in text_lines(Piece(file), bad):
            try:
                yield _row(line)
            except BadRecord as error:
                bad.add(error, line.place)

    for query, group in itertools.groupby(rows(), key=lambda row: row[0]):
        lines = list(group)
        positives = dict.fromkeys(p for row in lines for p in row[1])
        negatives = dict.fromkeys(p for row in lines for p in row[2])
        yield TrainingLine("", query, tuple(positives), tuple(negatives))


def _row(line: Line) -> Row:
    fields = line.text.split("\t")
    if len(fields) not in (4, 6):
        raise BadRecord(
            f"{len(fields)} columns; expected 6 (question, title, positive, title, negative, 0) "
            f"or 4 (question, title, passage, label)"
        )
    query = fields[0].strip()
    passages = [
        Passage("", "" if title == NO_TITLE else title.strip(), text.strip())
        for title, text in zip(fields[1:-1:2], fields[2::2], strict=False)
    ]
    if not query or not all(p.text for p in passages):
        raise BadRecord("the question or a passage is empty")
    if len(fields) == 6:
        return query, (passages[0],), (passages[1],)
    if fields[3] not in ("0", "1"):
        raise BadRecord(f"the label {fields[3]!r} is neither 0 nor 1")
    return (query, (passages[0],), ()) if fields[3] == "1" else (query, (), (passages[0],))


def _dpr(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    """biencoder-nq-train.json: a JSON array of {"question", "answers", "positive_ctxs",
    "negative_ctxs", "hard_negative_ctxs"}, of passages {"title", "text", "passage_id" or "psg_id"}.

    Negatives are the hard ones. Questions are numbered from 0. One without a positive passage stays
    without, as in DPR, where training leaves it out.
    """
    for number, (record, place) in enumerate(objects(file, bad)):
        try:
            question = string(record, "question", what="question").strip()
            if not question:
                raise BadRecord("the question is empty")
            positives = _passages(record, "positive_ctxs")
            negatives = _passages(record, "hard_negative_ctxs")
        except BadRecord as error:
            bad.add(f"question {number}: {error}", place)
            continue
        yield TrainingLine(str(number), question, positives, negatives)


def _passages(record: Mapping[str, Any], key: str) -> tuple[Passage, ...]:
    given = record.get(key) or []
    if not isinstance(given, list) or not all(isinstance(passage, dict) for passage in given):
        raise BadRecord(f"{key!r} is not a list of passages")
    return tuple(
        Passage(
            string(passage, "passage_id", "psg_id"),
            string(passage, "title").strip(),
            string(passage, "text", what="text").strip(),
        )
        for passage in given
    )


TRAINING_FORMATS = {
    "dpr": TrainingFormat((".json",), _dpr),
    "rocketqa": TrainingFormat((".tsv",), _rocketqa),
    "tevatron": TrainingFormat((".jsonl", ".json"), _tevatron),
}
