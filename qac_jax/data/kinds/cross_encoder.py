"""A query and a passage in one sequence, relevant or not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.form import PAIR_TRUNCATIONS, Form, check_name
from qac_jax.data.kind import (
    Building,
    Example,
    Feature,
    JudgedKind,
    Lengths,
    Record,
    Settings,
    Stored,
)
from qac_jax.formats.queries import with_score


if TYPE_CHECKING:
    from qac_jax.data.judged import Judged
    from qac_jax.data.shards import JudgedTexts


def cross_encoder(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    truncation: str = "pop_longer",
) -> Example:
    """A query and a passage in one sequence with token types, and whether it is relevant."""
    ids, types = form.two(record["query"], record["passage"], lengths["pair"], truncation)
    return {"pair": ids, "pair_types": types, "label": np.int32(record["label"][0])}


def features(settings: Settings) -> dict[str, Feature]:
    del settings
    return {
        "pair": Feature(length=160),
        "pair_types": Feature(like="pair"),
        "label": Feature(axes=()),
    }


def check(settings: Settings) -> None:
    check_name("truncation", settings["truncation"], PAIR_TRUNCATIONS)


def records(texts: JudgedTexts, queries: Sequence[Judged]) -> Iterator[Record]:
    """A query with each of its positives and with some of its negatives."""
    building = texts.building
    for judged, query in texts.queries(queries, lambda judged: _fewer(judged, building)):
        for label, passages, scores in (
            (1, judged.positives, judged.positives_scores),
            (0, judged.negatives, judged.negatives_scores),
        ):
            query_ids: Sequence[Sequence[int]] = [query] * len(passages)
            if building.negatives.scores:
                text = building.texts.query_prompt + judged.query
                scored = [with_score(text, share) for share in scores]
                query_ids = texts.tokenizer.encode_batch(scored)
            for ids, passage in zip(query_ids, texts.ids(passages), strict=True):
                yield {"query": ids, "passage": passage, "label": [label]}


def _fewer(judged: Judged, building: Building) -> Judged:
    """The query with at most `negatives_per_query` of its negatives."""
    rng = random.Random(f"{building.seed} {judged.query}")
    wanted = min(building.negatives.negatives_per_query, len(judged.negatives))
    places = rng.sample(range(len(judged.negatives)), wanted)
    negatives = [judged.negatives[i] for i in places]
    if not len(judged.negatives_scores):
        return dataclasses.replace(judged, negatives=negatives)
    scores = [float(judged.negatives_scores[i]) for i in places]
    return dataclasses.replace(judged, negatives=negatives, negatives_scores=scores)


KIND = JudgedKind(
    name="cross_encoder",
    function=cross_encoder,
    features=features,
    needs=lambda settings: ("query", "passage", "label"),
    check=check,
    stored=lambda building: Stored(("query", "passage"), (), {"label": "int32"}),
    records=records,
    takes_scores=True,
    crop="right",
    title="space",
)
