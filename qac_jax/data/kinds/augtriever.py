"""A damaged crop of a document and a pseudo-query of a drawn strategy (AugTriever)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.drawing import any_text, check_weights, pair, pick
from qac_jax.data.form import Form
from qac_jax.data.kind import LENGTH, Example, Feature, Kind, Lengths, Record, Settings
from qac_jax.errors import UserError
from qac_jax.text import crops
from qac_jax.text.crops import below


# Strategies that need no stored text: another crop, and spans of which the encoder that is trained
# chooses one.
RANDOM_CROP, QEXT_SELF = "random_crop", "qext_self"


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
        query = any_text(record, name, rng)
    example = pair(document, query, rng, form, lengths)
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
    found = {"passage": Feature(length=256), "context": Feature(length=128)}
    if settings["strategies"].get(QEXT_SELF):
        found["spans"] = Feature(axes=(settings["spans"], LENGTH), length=32)
        found["extract"] = Feature(axes=())
    return found


def check(settings: Settings) -> None:
    names = list(settings["strategies"])
    check_weights("strategies", settings["strategies"], [RANDOM_CROP, *names])
    share, words = settings["random_crop_share"], settings["span_words"]
    if not 0 <= share <= 1:
        raise UserError(f"random_crop_share={share} is not a share; expected 0 to 1")
    if settings["spans"] < 1 or len(words) != 2 or not 1 <= words[0] <= words[1]:
        raise UserError(
            f"spans={settings['spans']} of span_words={tuple(words)} cannot be drawn; expected at "
            "least one, and the fewest and the most words in order"
        )


KIND = Kind(
    name="augtriever",
    function=augtriever,
    features=features,
    needs=needs,
    check=check,
)
