"""Tevatron's training lines: {"query_id", "query", "positive_passages", "negative_passages"}."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import Piece, text_lines
from qac_jax.formats.lines import json_object, string
from qac_jax.formats.readers.documents.tevatron import passage_of
from qac_jax.formats.training import TrainingFormat, TrainingLine


def read(file: str, bad: BadLines) -> Iterator[TrainingLine]:
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


FORMAT = TrainingFormat((".jsonl", ".json"), read)
