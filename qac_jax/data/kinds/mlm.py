"""A single text, whose tokens are masked on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import DocumentKind, Example, Feature, Lengths, Record, Stored


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts


def masked_lm(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """A single text; its tokens are masked on the device."""
    return {"tokens": form.one(record["passage"], lengths["tokens"], rng)}


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """Every passage."""
    for body in texts.passages(documents):
        yield [{"passage": ids} for ids in body if texts.has(ids, "passages without tokens")]


KIND = DocumentKind(
    name="mlm",
    function=masked_lm,
    features=lambda settings: {"tokens": Feature(length=128)},
    needs=lambda settings: ("passage",),
    stored=lambda building: Stored(("passage",)),
    records=records,
)
