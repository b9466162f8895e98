"""A passage and one of its queries (query-as-context)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.drawing import any_text, pair
from qac_jax.data.form import Form
from qac_jax.data.kind import DocumentKind, Example, Lengths, Record, Stored, two_texts


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts


def passage_query(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, queries: int = 0
) -> Example:
    """A passage and one of its queries at random (of the first `queries`; 0: of all)."""
    context = any_text(record, "contexts", rng, queries)
    return pair(record["passage"], context, rng, form, lengths)


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """A passage with all of its queries; one without any is left out."""
    for body, contexts_of in zip(texts.passages(documents), texts.contexts(documents), strict=True):
        yield [
            {"passage": ids, "contexts": contexts}
            for ids, contexts in zip(body, contexts_of, strict=True)
            if texts.has(ids, "passages without tokens")
            and texts.has(contexts, "passages without queries")
        ]


KIND = DocumentKind(
    name="passage_query",
    function=passage_query,
    features=two_texts(144, 32),
    needs=lambda settings: ("passage", "contexts"),
    stored=lambda building: Stored(("passage",), ("contexts",)),
    records=records,
    asks=True,
)
