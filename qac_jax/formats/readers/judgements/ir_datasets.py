"""The judgements of a data set of ir_datasets by name, such as beir/scifact/test."""

from __future__ import annotations

from collections.abc import Iterator

from qac_jax.formats.judgements import Judgement, JudgementFormat
from qac_jax.formats.readers import named
from qac_jax.formats.readers.documents.ir_datasets import WHAT, opened


def read(name: str) -> Iterator[Judgement]:
    collection = opened(name)
    records = named.loaded(WHAT, name, lambda: list(collection.qrels_iter()))
    for record in records:
        yield Judgement(str(record.query_id), str(record.doc_id), int(record.relevance))


FORMAT = JudgementFormat((), lambda fields: Judgement(fields[0], fields[1]), read=read)
