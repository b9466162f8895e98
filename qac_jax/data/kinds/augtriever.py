"""A document crop with deleted words, and a pseudo-query of a drawn strategy (AugTriever)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import (
    LENGTH,
    Building,
    DocumentKind,
    Example,
    Feature,
    Lengths,
    Record,
    Settings,
    Stored,
    any_text,
    check_weights,
    pair,
    pick,
)
from qac_jax.errors import UserError
from qac_jax.text import crops
from qac_jax.text.crops import below


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts
    from qac_jax.formats.records import Records
    from qac_jax.text.tokenizers import Tokenizer


TOPICS = ("topic", "title", "absum", "exsum")
TQGEN = {f"tqgen_{name}": {f"tqgen_{name}": 1.0} for name in TOPICS}
_HYBRID = {"random_crop": 0.2, **{f"tqgen_{name}": 0.2 for name in TOPICS}}
# What a text's query is, with what share of the texts:
STRATEGIES: dict[str, dict[str, float]] = {
    "random_crop": {"random_crop": 1.0},  # another crop of it (the baseline, as in Contriever)
    "qext_self": {"qext_self": 1.0},  # of 16 spans the one that the encoder scores highest, anew
    "qext_bm25": {"qext_bm25": 1.0},  # its span with the highest BM25 score
    "qext_plm": {"qext_plm": 1.0},  # its likeliest span under a T5 that reads the text
    "doc_title": {"doc_title": 1.0},  # its title, or its first line
    "doc_anchor": {"doc_anchor": 1.0},  # up to three of its link labels or emphasised phrases
    **TQGEN,  # what T0-3B, which was not trained on queries, answers to a prompt
    "qgen_d2q": {"qgen_d2q": 1.0},  # a question of doc2query, trained on judged questions
    "paq": {"paq": 1.0},  # a published question of PAQ (Lewis et al., 2021), for DPR's passages
    "hybrid_tqgen": _HYBRID,
    "hybrid_tqgen_plus": _HYBRID,  # trained twice as long on batches of 2,048
    # The paper; the released script's shares do not sum to one.
    "hybrid_all": {
        "random_crop": 0.2,
        "qext_plm": 0.1,
        "doc_title": 0.14,
        **{f"tqgen_{name}": 0.14 for name in TOPICS},
    },
}

# Strategies without stored texts: another crop, and spans from which the encoder in training
# chooses one.
RANDOM_CROP, QEXT_SELF = "random_crop", "qext_self"
EXTRACTED = "qext_"  # begins the names of strategies whose texts were drawn for several epochs


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
    whole_documents: bool = False,
    spans: int = 16,
    span_words: Sequence[int] = (4, 16),
    separator: Sequence[int] = (),
) -> Example:
    """The document is cropped (5 to 50 % of at most `context_words` words) and each word is deleted
    with the probability `delete`; no words of the query are deleted (the released code). With
    `whole_documents` this is so only where the query is a crop as well (section 1 of the paper).
    "random_crop" (also for the share `random_crop_share`) is another crop of the same words; every
    other strategy takes one of the record's texts of that name whole (of extracted spans the
    epoch's draw), those in `phrases` up to `max_phrases` of them joined by `separator`. Where a
    document lacks a text of the strategy, phrases fall back to its title, and the others to a crop:
    the released code drops such examples, so the length of an epoch would be unknown.

    Where "qext_self" is among the strategies, `extract` is 1 if it was drawn, and `spans` are its
    candidates (`spans` of `span_words` words; the query is a crop until one is chosen).
    """
    words, ids = record["words"], record["text"]
    ends = np.concatenate(([0], np.cumsum(words, dtype=np.int64)))
    first, last = crops.window(len(words), context_words, rng)

    start, stop = crops.crop(last - first, rng)
    surviving = crops.survivors(stop - start, rng, delete=delete)
    start, stop = first + start, first + stop
    document = ids[ends[start] : ends[stop]][np.repeat(surviving, words[start:stop])]

    name = pick(strategies, rng)
    if random_crop_share and rng.random() < random_crop_share:
        name = RANDOM_CROP
    if name != RANDOM_CROP and name in phrases and not len(record[name]) and "title" in record:
        name = "title"
    cropped = name == RANDOM_CROP or (name != QEXT_SELF and not len(record[name]))
    if whole_documents and not cropped:
        document = ids[ends[first] : ends[last]]
    if cropped or name == QEXT_SELF:
        start, stop = crops.crop(last - first, rng)
        query = ids[ends[first + start] : ends[first + stop]]
    elif name in phrases:
        query = _joined(record[name], max_phrases, separator, rng)
    elif name.startswith(EXTRACTED):
        texts = record[name]  # another one every epoch: they were drawn for that
        query = texts[getattr(rng, "epoch", 0) % len(texts)]
    else:
        query = any_text(record, name, rng)
    example = pair(document, query, rng, form, lengths)
    if strategies.get(QEXT_SELF):
        places = [(0, 0)] * spans  # ignored where `extract` is 0
        if name == QEXT_SELF:
            low, high = span_words
            places = crops.chunks(last - first, rng, count=spans, shortest=low, longest=high)
        example["extract"] = int(name == QEXT_SELF)
        example["spans"] = [
            form.one(ids[ends[first + a] : ends[first + b]], lengths["spans"], rng)
            for a, b in places
        ]
    return example


def _joined(
    texts: Sequence[np.ndarray], most: int, separator: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """Between one and `most` of the texts, in random order, with the separator between them."""
    count = 1 + below(rng, min(most, len(texts)))
    parts: list[Any] = []
    for number in rng.permutation(len(texts))[:count]:
        parts += [separator, texts[int(number)]]
    return np.concatenate(parts[1:], dtype=np.int32)


def needs(settings: Settings) -> tuple[str, ...]:
    drawn = (RANDOM_CROP, QEXT_SELF)
    names = [s for s, w in settings["strategies"].items() if w > 0 and s not in drawn]
    return ("text", "words", *names)


def features(settings: Settings) -> dict[str, Feature]:
    result = {"passage": Feature(length=256), "context": Feature(length=128)}
    if settings["strategies"].get(QEXT_SELF):
        result["spans"] = Feature(axes=(settings["spans"], LENGTH), length=32)
        result["extract"] = Feature(axes=())
    return result


def check(settings: Settings) -> None:
    names = list(settings["strategies"])
    check_weights("strategies", settings["strategies"], [RANDOM_CROP, *names])
    share, count, words = (settings[n] for n in ("random_crop_share", "spans", "span_words"))
    if not 0 <= share <= 1 or count < 1 or len(words) != 2 or not 1 <= words[0] <= words[1]:
        raise UserError(
            f"random_crop_share={share}, spans={count}, span_words={tuple(words)}; expected a "
            "share from 0 to 1, at least one span, and the fewest and the most words in order"
        )


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """A passage by words, with its texts of every strategy."""
    words = [[p["text"].split() for p in d.passages] for d in documents]
    every = [split for document in words for split in document]
    backend, names = texts.tokenizer.backend, texts.building.selection.strategies
    stream = iter(backend.encode_batch(every, is_pretokenized=True, add_special_tokens=False))
    given = [[*map(strategy_texts, d.passages, d.contexts)] for d in documents]
    by_name = {n: texts.lists([[t.get(n, []) for t in of] for of in given]) for n in names}
    for number, document in enumerate(words):
        found: list[Record] = []
        for place, split in enumerate(document):
            encoding = next(stream)
            if texts.has(encoding.ids, "passages without tokens"):
                pieces = np.bincount(encoding.word_ids, minlength=len(split))
                # Words without tokens (control characters) would make empty crops.
                record: Record = {"text": encoding.ids, "words": pieces[pieces > 0]}
                found.append({**record, **{n: of[number][place] for n, of in by_name.items()}})
        yield found


def strategy_texts(passage: Record, contexts: Sequence[Record]) -> dict[str, list[str]]:
    """The possible pseudo-queries by strategy: title, anchors, phrases, and contexts."""
    by_strategy = {"title": [passage["title"]] if passage.get("title") else []}
    for name in ("anchor", "phrase"):  # anchors are [target, label]
        items = passage.get(f"{name}s", ())
        by_strategy[name] = [item if isinstance(item, str) else item[-1] for item in items]
    for context in contexts:
        by_strategy.setdefault(context["origin"], []).append(context["text"])
    return by_strategy


def completed(building: Building, contexts: Records | None) -> Building:
    """The default strategies: those of the passages, and every origin of the contexts."""
    if building.selection.strategies:
        return building
    origins = {"anchor", "phrase", "title"}
    origins |= {c["origin"] for record in contexts or () for c in record["contexts"]}
    selection = dataclasses.replace(building.selection, strategies=tuple(sorted(origins)))
    return dataclasses.replace(building, selection=selection)


def settings(building: Building, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokens of ", " between two phrases."""
    del building
    alone, joined = tokenizer.encode("a"), tokenizer.encode("a, a")
    return {"separator": joined[len(alone) : -len(alone)]}


AUGTRIEVER = DocumentKind(
    name="augtriever",
    function=augtriever,
    features=features,
    needs=needs,
    check=check,
    stored=lambda building: Stored(("text",), building.selection.strategies, {"words": "int32"}),
    settings=settings,
    completed=completed,
    records=records,
)
