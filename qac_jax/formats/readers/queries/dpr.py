"""DPR's questions: question, list of answers as Python writes it; numbered from 0 as DPR does."""

from __future__ import annotations

import ast

from qac_jax.formats.bad_lines import BadRecord
from qac_jax.formats.files import Line
from qac_jax.formats.lines import quoted_columns
from qac_jax.formats.queries import Query, answers_of, line_queries, number_of
from qac_jax.formats.registry import NO, SURE, Sample


def _query(line: Line) -> Query:
    question, answers = quoted_columns(line.text, ("question", "answers"))
    try:
        given = ast.literal_eval(answers)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadRecord("the answers are not a Python list of texts") from None
    return Query(number_of(line), question, answers_of(given), place=line.place)


def recognise(sample: Sample) -> int:
    listed = len(sample.columns) == 2 and sample.columns[1].strip('" ').startswith("[")
    return SURE if listed else NO


FORMAT = line_queries(_query, recognise)
