"""MS MARCO's and Anserini's queries: id, text, divided by a tab."""

from __future__ import annotations

from qac_jax.formats.files import Line
from qac_jax.formats.lines import columns
from qac_jax.formats.queries import Query, line_queries
from qac_jax.formats.registry import LIKELY, NO, Sample


def _query(line: Line) -> Query:
    name, text = columns(line.text, ("id", "text"))
    return Query(name, text.strip(), place=line.place)


def recognise(sample: Sample) -> int:
    return LIKELY if len(sample.columns) == 2 else NO


FORMAT = line_queries(_query, recognise)
