"""BEIR's queries: {"_id", "text", "metadata": {"answers", …}} a line."""

from __future__ import annotations

from qac_jax.formats.files import Line
from qac_jax.formats.lines import json_object, string
from qac_jax.formats.queries import Query, answers_of, line_queries
from qac_jax.formats.registry import LIKELY, NO, Sample


def _query(line: Line) -> Query:
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


def recognise(sample: Sample) -> int:
    return NO if sample.record is None else LIKELY


FORMAT = line_queries(_query, recognise)
