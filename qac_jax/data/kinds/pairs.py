"""The kinds of pre-training and of generators: a text alone, or a passage with a context."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import (
    SORTS,
    Building,
    DocumentKind,
    Example,
    Feature,
    Lengths,
    Record,
    Stored,
    any_text,
    check_weights,
    pair,
    pick,
    two_texts,
)
from qac_jax.text.crops import below


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts
    from qac_jax.text.tokenizers import Tokenizer


def masked_lm(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """A single text; its tokens are masked on the device."""
    return {"tokens": form.one(record["passage"], lengths["tokens"], rng)}


def passage_query(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, queries: int = 0
) -> Example:
    """A passage and one of its queries at random (of the first `queries`; 0: of all)."""
    context = any_text(record, "contexts", rng, queries)
    return pair(record["passage"], context, rng, form, lengths)


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


# The stored feature of each sort of context of `mixed`.
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


def _half_queries(building: Building, tokenizer: Tokenizer) -> dict[str, Any]:
    """By default half of all contexts are queries."""
    sorts = building.siblings.sorts
    return {"probabilities": {"query": 0.5, **dict.fromkeys(sorts, 0.5 / max(len(sorts), 1))}}


def two_spans(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """Two different spans of a document (coCondenser; Gao & Callan, 2022, §3.2)."""
    spans = record["spans"]
    first = below(rng, len(spans))
    second = below(rng, len(spans) - 1)
    second += second >= first
    return pair(spans[first], spans[second], rng, form, lengths)


def seq2seq(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, targets: int = 0
) -> Example:
    """An input text and one of its targets at random (of the first `targets`; 0: of all)."""
    return {
        "inputs": form.one(record["inputs"], lengths["inputs"], rng),
        "targets": form.one(any_text(record, "targets", rng, targets), lengths["targets"], rng),
    }


def passages(
    texts: DocumentTexts,
    documents: Sequence[DocumentContexts],
    *,
    queries: str = "none",
    siblings: bool = False,
) -> Iterator[list[Record]]:
    """Every passage, with all of its queries, and its siblings of every sort.

    queries: "none", "some", or "needed" (then passages without any are left out).
    """
    bodies = texts.passages(documents)
    nothing: Any = [[{}] * len(body) for body in bodies]
    asked = texts.contexts(documents) if queries != "none" else nothing
    others = texts.siblings(documents, bodies) if siblings else nothing
    for of_document in zip(bodies, asked, others, strict=True):
        yield [
            {"passage": ids, **({} if queries == "none" else {"contexts": contexts}), **more}
            for ids, contexts, more in zip(*of_document, strict=True)
            if texts.has(ids, "passages without tokens")
            and (queries != "needed" or texts.has(contexts, "passages without queries"))
        ]


def spans_of_documents(
    texts: DocumentTexts, documents: Sequence[DocumentContexts]
) -> Iterator[list[Record]]:
    """All passages of each document; documents with a single passage are left out."""
    for body in texts.passages(documents):
        spans = [ids for ids in body if ids]
        several = texts.has(spans[1:], "documents of one passage")
        yield [{"spans": spans}] if several else []


def inputs_and_targets(
    texts: DocumentTexts, documents: Sequence[DocumentContexts]
) -> Iterator[list[Record]]:
    """A passage and all of its targets; one without any is left out."""
    for body, targets_of in zip(texts.passages(documents), texts.contexts(documents), strict=True):
        yield [
            {"inputs": ids, "targets": targets}
            for ids, targets in zip(body, targets_of, strict=True)
            if texts.has(targets, "passages without targets")
        ]


def of_pairs(texts: DocumentTexts, pairs: Sequence[Record]) -> Iterator[Record]:
    """Records {"before", "text", "after", "targets"}; only the text is truncated."""
    before, text, after = (
        texts.tokenizer.encode_batch([item[part] for item in pairs])
        for part in ("before", "text", "after")
    )
    answers = iter(texts.tokenizer.encode_batch([t for item in pairs for t in item["targets"]]))
    for number, item in enumerate(pairs):
        targets = [ids for ids in (next(answers) for _ in item["targets"]) if ids]
        room = texts.building.texts.input_tokens or len(text[number])
        room = max(0, room - len(before[number]) - len(after[number]))
        inputs = [*before[number], *text[number][:room], *after[number]]
        if texts.has(inputs and targets, "pairs without tokens"):
            yield {"inputs": inputs, "targets": targets}


MLM = DocumentKind(
    name="mlm",
    function=masked_lm,
    features=lambda settings: {"tokens": Feature(length=128)},
    needs=lambda settings: ("passage",),
    stored=lambda building: Stored(("passage",)),
    records=passages,
)
PASSAGE_QUERY = DocumentKind(
    name="passage_query",
    function=passage_query,
    features=two_texts(144, 32),
    needs=lambda settings: ("passage", "contexts"),
    stored=lambda building: Stored(("passage",), ("contexts",)),
    records=functools.partial(passages, queries="needed"),
    asks=True,
)
PASSAGE_PASSAGE = DocumentKind(
    name="passage_passage",
    function=passage_passage,
    features=two_texts(144, 144),
    needs=lambda settings: ("passage", *settings["sorts"]),
    check=lambda settings: check_weights("sorts", dict.fromkeys(settings["sorts"], 1.0), SORTS),
    stored=lambda building: Stored(("passage",), building.siblings.sorts),
    settings=lambda building, tokenizer: {"sorts": list(building.siblings.sorts)},
    records=functools.partial(passages, siblings=True),
)
MIXED = DocumentKind(
    name="mixed",
    function=mixed,
    features=two_texts(144, 144),
    needs=lambda settings: (
        "passage",
        *(CONTEXTS[sort] for sort, weight in settings["probabilities"].items() if weight > 0),
    ),
    check=lambda settings: check_weights(
        "probabilities", settings["probabilities"], list(CONTEXTS)
    ),
    stored=lambda building: Stored(("passage",), ("contexts", *building.siblings.sorts)),
    settings=_half_queries,
    records=functools.partial(passages, queries="some", siblings=True),
    asks=True,
)
TWO_SPANS = DocumentKind(
    name="two_spans",
    function=two_spans,
    features=two_texts(128, 128),
    needs=lambda settings: ("spans",),
    stored=lambda building: Stored(lists=("spans",)),
    records=spans_of_documents,
    one_each=False,
)
SEQ2SEQ = DocumentKind(
    name="seq2seq",
    function=seq2seq,
    features=lambda settings: {"inputs": Feature(length=192), "targets": Feature(length=64)},
    needs=lambda settings: ("inputs", "targets"),
    stored=lambda building: Stored(("inputs",), ("targets",)),
    records=inputs_and_targets,
    of_pairs=of_pairs,
    asks=True,
    crop="right",
)
