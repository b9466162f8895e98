"""ORCAS: query id, query, document id, url; a query has a line for every click."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.files import Line
from qac_jax.formats.identities import IdSet
from qac_jax.formats.lines import columns
from qac_jax.formats.queries import Query, QueryFormat, line_queries
from qac_jax.formats.registry import LIKELY, NO, Sample


def read(file: str, bad: BadLines) -> Iterator[Query]:
    known = IdSet()

    def parse(line: Line) -> Query | None:
        name, text, _, _ = columns(line.text, ("qid", "query", "docid", "url"))
        return Query(name, text.strip(), place=line.place) if known.add(name) else None

    return line_queries(parse).read(file, bad)


def recognise(sample: Sample) -> int:
    return LIKELY if len(sample.columns) == 4 else NO


FORMAT = QueryFormat(read, recognise)
