"""Two spans of a document (coCondenser)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.drawing import pair
from qac_jax.data.form import Form
from qac_jax.data.kind import DocumentKind, Example, Lengths, Record, Stored, two_texts
from qac_jax.text.crops import below


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts


def two_spans(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """Two different spans of a document (coCondenser; Gao & Callan, 2022, §3.2)."""
    spans = record["spans"]
    first = below(rng, len(spans))
    second = below(rng, len(spans) - 1)
    second += second >= first
    return pair(spans[first], spans[second], rng, form, lengths)


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """All passages of each document; documents with a single passage are left out."""
    for body in texts.passages(documents):
        spans = [ids for ids in body if ids]
        several = texts.has(spans[1:], "documents of one passage")
        yield [{"spans": spans}] if several else []


KIND = DocumentKind(
    name="two_spans",
    function=two_spans,
    features=two_texts(128, 128),
    needs=lambda settings: ("spans",),
    stored=lambda building: Stored(lists=("spans",)),
    records=records,
    one_each=False,
)
