"""One query a line and nothing else, numbered from 1."""

from __future__ import annotations

from qac_jax.formats.files import Line
from qac_jax.formats.queries import Query, line_queries
from qac_jax.formats.registry import LIKELY, NO, Sample


def _query(line: Line) -> Query:
    return Query(str(line.place.line), line.text.strip(), place=line.place)


def recognise(sample: Sample) -> int:
    return LIKELY if len(sample.columns) == 1 else NO


FORMAT = line_queries(_query, recognise)
