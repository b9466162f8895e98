"""Records of queries with all of their passages, which `triples` and `cross_encoder_group` read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qac_jax.data.building import Building, Record, Stored


if TYPE_CHECKING:
    from qac_jax.data.encoding import JudgedTexts
    from qac_jax.data.judged import Judged


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
