"""A passage and a context whose sort is drawn: a query, or another passage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.drawing import any_text, check_weights, pair, pick
from qac_jax.data.form import Form
from qac_jax.data.kind import (
    SORTS,
    Building,
    DocumentKind,
    Example,
    Lengths,
    Record,
    Settings,
    Stored,
    two_texts,
)


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts
    from qac_jax.text.tokenizers import Tokenizer


# The stored feature of each sort of context.
CONTEXTS = {"query": "contexts"} | {sort: sort for sort in SORTS}


def mixed(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    probabilities: Mapping[str, float],
    queries: int = 0,
) -> Example:
    """A passage and a context whose sort is drawn: {"query": 0.5, "random": 0.5}…

    Only sorts that this passage has are drawn: it may lack queries, or be alone in its document.
    """
    sort = pick(probabilities, rng)
    if not len(record[CONTEXTS[sort]]):
        there = {s: p for s, p in probabilities.items() if p > 0 and len(record[CONTEXTS[s]])}
        sort = pick(there or probabilities, rng)
    limit = queries if sort == "query" else 0
    return pair(record["passage"], any_text(record, CONTEXTS[sort], rng, limit), rng, form, lengths)


def needs(settings: Settings) -> tuple[str, ...]:
    sorts = [sort for sort, weight in settings["probabilities"].items() if weight > 0]
    return ("passage", *(CONTEXTS[sort] for sort in sorts))


def check(settings: Settings) -> None:
    check_weights("probabilities", settings["probabilities"], list(CONTEXTS))


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """A passage with all of its queries and its siblings of every sort."""
    bodies = texts.passages(documents)
    contexts, siblings = texts.contexts(documents), texts.siblings(documents, bodies)
    for body, contexts_of, others in zip(bodies, contexts, siblings, strict=True):
        yield [
            {"passage": ids, "contexts": queries, **more}
            for ids, queries, more in zip(body, contexts_of, others, strict=True)
            if texts.has(ids, "passages without tokens")
        ]


def settings(building: Building, tokenizer: Tokenizer) -> dict[str, Any]:
    """By default half of all contexts are queries."""
    del tokenizer
    sorts = building.siblings.sorts
    siblings = dict.fromkeys(sorts, 0.5 / max(len(sorts), 1))
    return {"probabilities": {"query": 0.5, **siblings}}


KIND = DocumentKind(
    name="mixed",
    function=mixed,
    features=two_texts(144, 144),
    needs=needs,
    check=check,
    stored=lambda building: Stored(("passage",), ("contexts", *building.siblings.sorts)),
    settings=settings,
    records=records,
    asks=True,
)
