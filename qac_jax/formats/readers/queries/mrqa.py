"""MRQA's questions below each context; their meta names its document (document format mrqa)."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import Piece, text_lines
from qac_jax.formats.lines import json_object, made_id, string
from qac_jax.formats.queries import Query, QueryFormat, answers_of
from qac_jax.formats.registry import NO, SURE, Sample


def read(file: str, bad: BadLines) -> Iterator[Query]:
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


def recognise(sample: Sample) -> int:
    if sample.record is None:
        return NO
    return SURE if '"header"' in sample.first or '"qas"' in sample.first else NO


FORMAT = QueryFormat(read, recognise)
