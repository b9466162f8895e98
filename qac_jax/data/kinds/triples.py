"""A query with judged passages, for a dual encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.drawing import check_passages, window
from qac_jax.data.form import Form, title_and_body
from qac_jax.data.kind import (
    LENGTH,
    Building,
    Example,
    Feature,
    JudgedKind,
    Lengths,
    Record,
    Settings,
    Stored,
)
from qac_jax.data.randomness import ExampleRng


if TYPE_CHECKING:
    from qac_jax.data.judged import Judged
    from qac_jax.data.shards import JudgedTexts


def triples(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 16,
    rotate_positives: bool = True,
    shuffle_negatives: bool = True,
    title_types: bool = False,
    teacher: bool = False,
) -> Example:
    """A query, one positive and n_passages - 1 negatives (Tevatron's sampling).

    The positive rotates with the epoch. Negatives are permuted, with one permutation for each
    example, and each epoch takes the next window of them, so that epochs get different ones; where
    there are too few, they are drawn with replacement.

    `title_types` treats `title [SEP] body` as a pair: truncated by turns from the longer, with
    token types (RocketQA and PAIR). `teacher` adds the stored scores of the passages.
    """
    positives, negatives = record["positives"], record["negatives"]
    place = (rng.seed + rng.index + rng.epoch) % len(positives) if rotate_positives else 0
    chosen = window(len(negatives), n_passages - 1, rng, shuffle_negatives)
    passages = [positives[place], *(negatives[i] for i in chosen)]
    limit = lengths["passages"]
    example: Example = {"query": form.one(record["query"], lengths["query"], rng)}
    if title_types:
        both = [title_and_body(ids, form, limit) for ids in passages]
        example["passages"] = [ids for ids, _ in both]
        example["passages_types"] = [types for _, types in both]
    else:
        example["passages"] = [form.one(ids, limit, rng) for ids in passages]
    if teacher:
        scores = record["positives_scores"][place], *record["negatives_scores"][chosen]
        example["scores"] = np.array(scores, np.float32)
    return example


def features(settings: Settings) -> dict[str, Feature]:
    count = settings["n_passages"]
    result = {"query": Feature(length=32), "passages": Feature(axes=(count, LENGTH), length=144)}
    if settings["title_types"]:
        result["passages_types"] = Feature(axes=(count, LENGTH), like="passages")
    if settings["teacher"]:
        result["scores"] = Feature(axes=(count,), dtype="float32")
    return result


def needs(settings: Settings) -> tuple[str, ...]:
    return ("query", "positives", "negatives", *(SCORES if settings["teacher"] else ()))


SCORES = ("positives_scores", "negatives_scores")


def stored(building: Building) -> Stored:
    """The stored features of a record."""
    scores = dict.fromkeys(SCORES if building.negatives.teacher else (), "float32")
    return Stored(("query",), ("positives", "negatives"), scores)


def records(texts: JudgedTexts, queries: Sequence[Judged]) -> Iterator[Record]:
    """A query with its positives and negatives."""
    for judged, query in texts.queries(queries):
        record: dict[str, Any] = {
            "query": query,
            "positives": texts.ids(judged.positives),
            "negatives": texts.ids(judged.negatives),
        }
        if texts.building.negatives.teacher:
            record["positives_scores"] = judged.positives_scores
            record["negatives_scores"] = judged.negatives_scores
        yield record


KIND = JudgedKind(
    name="triples",
    function=triples,
    features=features,
    needs=needs,
    check=check_passages,
    stored=stored,
    records=records,
    crop="right",
    title="separate",
)
