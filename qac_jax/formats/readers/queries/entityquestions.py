"""EntityQuestions: a JSON list for each relation; P36.test.json gives ids P36-0, P36-1, …"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import whole_text
from qac_jax.formats.lines import string
from qac_jax.formats.queries import Query, QueryFormat, answers_of
from qac_jax.formats.registry import NO, SURE, Sample


def read(file: str, bad: BadLines) -> Iterator[Query]:
    relation = os.path.basename(file).split(".")[0]
    try:
        entries = json.loads(whole_text(file))
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON: {error.msg}", file=file, line=error.lineno) from error
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        try:
            if not isinstance(entry, dict):
                raise BadRecord("expected an object {question, answers}")
            question = string(entry, "question", what="question")
            answers = answers_of(entry.get("answers", entry.get("answer", [])))
        except BadRecord as error:
            bad.add(f"entry {number}: {error}", Place(file))
            continue
        meta = {"relation": relation}
        yield Query(f"{relation}-{number}", question, answers, meta, Place(file))


def recognise(sample: Sample) -> int:
    # DPR's training files are lists too.
    return SURE if sample.head.startswith("[") and '"positive_ctxs"' not in sample.head else NO


FORMAT = QueryFormat(read, recognise)
