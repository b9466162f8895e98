"""The questions and answers of DPR's training files, numbered from 0; see training/dpr.py.

Those without a positive passage are left out and counted: of Natural Questions 58,812 are left.
"""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.lines import objects, string
from qac_jax.formats.queries import Query, QueryFormat, answers_of
from qac_jax.formats.registry import NO, SURE, Sample


PASSAGES = '"positive_ctxs"'


def read(file: str, bad: BadLines) -> Iterator[Query]:
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


def recognise(sample: Sample) -> int:
    return SURE if sample.head.startswith("[") and PASSAGES in sample.head else NO


FORMAT = QueryFormat(read, recognise)
