"""A passage and another one of its document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.drawing import any_text, check_weights, pair
from qac_jax.data.form import Form
from qac_jax.data.kind import (
    SORTS,
    DocumentKind,
    Example,
    Lengths,
    Record,
    Settings,
    Stored,
    two_texts,
)
from qac_jax.text.crops import below


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts


def passage_passage(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    sorts: Sequence[str] = SORTS,
) -> Example:
    """A passage and another of its document: "random" (within 100), "nearby" or "overlap".

    The passage of a document with only one is its own context, as in the released code.
    """
    sort = sorts[below(rng, len(sorts))] if len(sorts) > 1 else sorts[0]
    return pair(record["passage"], any_text(record, sort, rng), rng, form, lengths)


def check(settings: Settings) -> None:
    check_weights("sorts", dict.fromkeys(settings["sorts"], 1.0), SORTS)


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """A passage with its siblings of every sort."""
    bodies = texts.passages(documents)
    for body, siblings in zip(bodies, texts.siblings(documents, bodies), strict=True):
        yield [
            {"passage": ids, **others}
            for ids, others in zip(body, siblings, strict=True)
            if texts.has(ids, "passages without tokens")
        ]


KIND = DocumentKind(
    name="passage_passage",
    function=passage_passage,
    features=two_texts(144, 144),
    needs=lambda settings: ("passage", *settings["sorts"]),
    check=check,
    stored=lambda building: Stored(("passage",), building.siblings.sorts),
    settings=lambda building, tokenizer: {"sorts": list(building.siblings.sorts)},
    records=records,
)
