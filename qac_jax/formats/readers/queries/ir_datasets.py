"""The queries of a data set of ir_datasets by name, such as beir/scifact/test."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.queries import Query, QueryFormat
from qac_jax.formats.readers import named
from qac_jax.formats.readers.documents.ir_datasets import WHAT, opened


def read(name: str, bad: BadLines) -> Iterator[Query]:
    """The text of a query is its title, where it has one (TREC topics)."""
    del bad  # the library raises where a record is damaged
    collection = opened(name)
    records = named.loaded(WHAT, name, lambda: list(collection.queries_iter()))
    for number, record in enumerate(records, start=1):
        fields = record._asdict()
        text = fields.get("text") or fields.get("title") or record.default_text()
        yield Query(str(record.query_id), str(text), place=Place(name, number))


FORMAT = QueryFormat(read, by_name=True)
