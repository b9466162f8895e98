"""DPR's questions as JSON lines: {"question", "answer": [regular expressions or texts]}."""

from __future__ import annotations

from qac_jax.formats.files import Line
from qac_jax.formats.lines import json_object, string
from qac_jax.formats.queries import Query, answers_of, line_queries, number_of
from qac_jax.formats.registry import NO, SURE, Sample


def _query(line: Line) -> Query:
    record = json_object(line.text)
    name = string(record, "id", "qid", "_id") or number_of(line)
    answers = record.get("answers", record.get("answer", []))
    question = string(record, "question", what="question")
    return Query(name, question, answers_of(answers), place=line.place)


def recognise(sample: Sample) -> int:
    if sample.record is None or '"qas"' in sample.first or '"header"' in sample.first:
        return NO
    return SURE if '"question"' in sample.first else NO


FORMAT = line_queries(_query, recognise)
