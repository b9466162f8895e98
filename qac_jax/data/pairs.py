"""Pair functions: one pure function (record, rng, settings) -> example for each kind.

A record is a mapping from the stored features' names to arrays: token ids without special tokens,
or lists of them. It is read from an examples artefact (`data/examples.py`), but a plain dict of
arrays and lists does as well. `rng` is numpy's Generator for (seed, epoch, example), so an example
is a function of its record and these three numbers. `form` adds special tokens and truncates;
`lengths` are the limits, special tokens included.

The seqio tasks (`data/tasks.py`) and the loader (`data/loader.py`) wrap these same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.form import Form
from qac_jax.errors import UserError, nearest
from qac_jax.text import crops
from qac_jax.text.crops import below


Record = Mapping[str, Any]
Example = dict[str, Any]
Lengths = Mapping[str, int]

# What may be the context of a passage: the stored feature of each.
CONTEXTS = {"query": "contexts", "random": "random", "nearby": "nearby", "overlap": "overlap"}
PASSAGES = ("random", "nearby", "overlap")

# AugTriever's strategies that need no stored text: another crop, and spans of which the encoder
# that is trained chooses one.
RANDOM_CROP, QEXT_SELF = "random_crop", "qext_self"


def passage_query(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, queries: int = 0
) -> Example:
    """A passage and one of its queries at random (of the first `queries`; 0: of all)."""
    context = _any(record, "contexts", rng, queries)
    return _pair(record["passage"], context, rng, form, lengths)


def passage_passage(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    sorts: Sequence[str] = PASSAGES,
) -> Example:
    """A passage and another of its document: "random" (within 100), "nearby" or "overlap".

    A document of one passage has no other: its passage is its own context, as in the released
    code.
    """
    sort = sorts[below(rng, len(sorts))] if len(sorts) > 1 else sorts[0]
    return _pair(record["passage"], _any(record, CONTEXTS[sort], rng), rng, form, lengths)


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

    Among the sorts that this passage has (a lone passage has no neighbour, some have no query).
    """
    sort = pick(probabilities, rng)
    if not len(record[CONTEXTS[sort]]):
        there = {s: p for s, p in probabilities.items() if p > 0 and len(record[CONTEXTS[s]])}
        sort = pick(there or probabilities, rng)
    limit = queries if sort == "query" else 0
    return _pair(record["passage"], _any(record, CONTEXTS[sort], rng, limit), rng, form, lengths)


def two_spans(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """Two different spans of a document (coCondenser; Gao & Callan, 2022, §3.2)."""
    spans = record["spans"]
    first = below(rng, len(spans))
    second = below(rng, len(spans) - 1)
    second += second >= first
    return _pair(spans[first], spans[second], rng, form, lengths)


def augtriever(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    strategies: Mapping[str, float],
    random_crop_share: float = 0.0,
    phrases: Sequence[str] = ("anchor", "phrase", "doc_anchor"),
    max_phrases: int = 3,
    context_words: int = 256,
    delete: float = 0.1,
    spans: int = 16,
    span_words: Sequence[int] = (4, 16),
    separator: Sequence[int] = (),
) -> Example:
    """AugTriever's pair: a damaged crop of a document, and a pseudo-query of a drawn strategy.

    The document is always cropped (5 to 50 % of at most `context_words` words) and loses each word
    with the probability `delete`; the query is never damaged (the released code).
    "random_crop" is another crop of the same words; every other strategy takes one of the record's
    texts of that name whole, those in `phrases` up to `max_phrases` of them joined by `separator`.
    A share of all examples is crops whatever was drawn.
    Where a document has no such text, phrases fall back to its title, and the rest to a crop: the
    released code drops such examples, which would make epochs of unknown length.

    Where "qext_self" is among the strategies, `extract` says whether it was drawn, and `spans` are
    its candidates (`spans` of `span_words` words; the query is then a crop until one is chosen).
    """
    words, ids = record["words"], record["text"]
    ends = np.concatenate(([0], np.cumsum(words, dtype=np.int64)))
    first, last = crops.window(len(words), context_words, rng)

    start, stop = crops.crop(last - first, rng)
    kept = crops.survivors(stop - start, rng, delete=delete)
    start, stop = first + start, first + stop
    document = ids[ends[start] : ends[stop]][np.repeat(kept, words[start:stop])]

    name = pick(strategies, rng)
    if random_crop_share and rng.random() < random_crop_share:
        name = RANDOM_CROP
    if name != RANDOM_CROP and name in phrases and not len(record[name]) and "title" in record:
        name = "title"
    if name in (RANDOM_CROP, QEXT_SELF) or not len(record[name]):
        start, stop = crops.crop(last - first, rng)
        query = ids[ends[first + start] : ends[first + stop]]
    elif name in phrases:
        query = _joined(record[name], max_phrases, separator, rng)
    else:
        query = _any(record, name, rng)
    example = _pair(document, query, rng, form, lengths)
    if strategies.get(QEXT_SELF):
        extract = name == QEXT_SELF
        places = [(0, 0)] * spans  # nobody looks at them where the query is another
        if extract:
            low, high = span_words
            places = crops.chunks(last - first, rng, count=spans, shortest=low, longest=high)
        example["extract"] = int(extract)
        example["spans"] = [
            form.one(ids[ends[first + a] : ends[first + b]], lengths["spans"], rng)
            for a, b in places
        ]
    return example


def masked_lm(record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths) -> Example:
    """A single text; its tokens are masked on the device."""
    return {"tokens": form.one(record["passage"], lengths["tokens"], rng)}


def seq2seq(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, targets: int = 0
) -> Example:
    """An input text and one of its targets at random (of the first `targets`; 0: of all)."""
    return {
        "inputs": form.one(record["inputs"], lengths["inputs"], rng),
        "targets": form.one(_any(record, "targets", rng, targets), lengths["targets"], rng),
    }


def pick(probabilities: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the names; the weights need not sum to one."""
    left = rng.random() * sum(probabilities.values())
    chosen = ""
    for name, weight in probabilities.items():
        if weight > 0:
            chosen = name
            left -= weight
            if left < 0:
                break
    return chosen


def check_weights(what: str, weights: Mapping[str, float], valid: Sequence[str]) -> None:
    """Refuses unknown names, negative weights, and nothing but zeros."""
    for name, weight in weights.items():
        if name not in valid:
            raise UserError(f"{what}: {name!r} is not known; {nearest(name, valid)}")
        if weight < 0:
            raise UserError(f"{what}: {name!r} has weight {weight}; expected 0 or more")
    if not sum(weights.values()):
        raise UserError(f"{what} has no weight above 0; give one, such as {{{valid[0]!r}: 1.0}}")


def _pair(
    passage: np.ndarray,
    context: np.ndarray,
    rng: np.random.Generator,
    form: Form,
    lengths: Lengths,
) -> Example:
    return {
        "passage": form.one(passage, lengths["passage"], rng),
        "context": form.one(context, lengths["context"], rng),
    }


def _any(record: Record, name: str, rng: np.random.Generator, first: int = 0) -> np.ndarray:
    """One of the (first) texts of a list; of an empty one, the passage itself."""
    texts = record[name]
    count = len(texts)
    if first and first < count:
        count = first
    if not count:
        return record["passage"]
    return texts[int(rng.random() * count)]


def _joined(
    texts: Sequence[np.ndarray], most: int, separator: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """Between one and `most` of the texts, in random order, with the separator between them."""
    count = 1 + below(rng, min(most, len(texts)))
    parts: list[Any] = []
    for number in rng.permutation(len(texts))[:count]:
        parts += [separator, texts[int(number)]]
    return np.concatenate(parts[1:], dtype=np.int32)
