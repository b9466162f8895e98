"""DPR's training files (biencoder-nq-train.json): a JSON array of questions with passages.

{"question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs"}, whose passages are
{"title", "text", "passage_id" or "psg_id"}. Negatives are the hard ones. Questions are numbered
from 0. One without a positive passage stays without, as in DPR, where training leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Passage
from qac_jax.formats.lines import objects, string
from qac_jax.formats.training import TrainingFormat, TrainingLine


def read(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    for number, (record, place) in enumerate(objects(file, bad)):
        try:
            question = string(record, "question", what="question").strip()
            if not question:
                raise BadRecord("the question is empty")
            yield TrainingLine(
                str(number),
                question,
                _passages(record, "positive_ctxs"),
                _passages(record, "hard_negative_ctxs"),
            )
        except BadRecord as error:
            bad.add(f"question {number}: {error}", place)


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


FORMAT = TrainingFormat((".json",), read)
