"""Pseudo-labels: what a teacher says of a retriever's candidates becomes training data.

PAIR (Ren et al., 2021) and RocketQA (Qu et al., 2021): a candidate that the teacher scores above
s_pos is a positive, one below s_neg a negative. Candidates come in the retriever's order. Queries
may be judged already (their negatives are then denoised, and where asked for their
positives extended), or have no label at all.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.inference.reranker import probability
from qac_jax.retrieval.settings import Labelling


BINS = 20


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A query's passages in the retriever's order; log-odds of the first ones (None: there is no
    teacher, and what is not known to be right is wrong).

    relevant: those known to answer it (None: nothing is known of this query). excluded: those
    that may answer it, though no label says so: they are never negatives.
    """

    query: str
    text: str
    ids: Sequence[str]
    odds: np.ndarray | None
    relevant: Mapping[str, float] | None = None
    excluded: Collection[str] = ()


class Labeller:
    """Candidates to records, counting what is kept and why the rest is not."""

    def __init__(self, rule: Labelling, seed: int = 111):
        self.rule, self._seed = rule, seed
        self.counts: Counter[str] = Counter()
        self.histogram = np.zeros(BINS, np.int64)

    def label(self, given: Candidates) -> dict[str, Any] | None:
        """A record of an artefact of negatives; None where the query gets no labels."""
        rule = self.rule
        ids = given.ids[: rule.depth]
        if given.odds is None:
            odds = sure = np.zeros(len(ids))
        else:
            odds = given.odds[: rule.depth]
            sure = probability(odds)
            self.histogram += np.histogram(sure, BINS, (0.0, 1.0))[0]
        self.counts["queries"] += 1
        positives = self._positives(given, ids, odds, sure)
        if not positives:
            self.counts["queries without a positive"] += 1
            return None
        barred = {*positives, *given.excluded, *(given.relevant or ())}
        right = [i for i in range(len(ids)) if sure[i] < rule.negative and ids[i] not in barred]
        if rule.order == "sampled":
            right = self._drawn(given.query, right, rule.count)
        negatives = {ids[i]: float(odds[i]) for i in right[: rule.count]}
        self.counts["negatives"] += len(negatives)
        for name in self._more(given, barred, rule.count - len(negatives)):
            negatives[name] = 0.0  # nobody scored it
        if not negatives:
            self.counts["queries without a negative"] += 1
            return None
        self.counts["queries kept"] += 1
        self.counts["positives"] += len(positives)
        return {
            "_id": given.query,
            "query": given.text,
            "positives": list(positives),
            "negatives": list(negatives),
            "positives_scores": [round(value, 6) for value in positives.values()],
            "negatives_scores": [round(value, 6) for value in negatives.values()],
        }

    def _positives(
        self, given: Candidates, ids: Sequence[str], odds: np.ndarray, sure: np.ndarray
    ) -> dict[str, float]:
        found = dict(given.relevant or {})
        if given.relevant is not None and not self.rule.extend:
            return found
        above = [int(i) for i in np.argsort(-odds, kind="stable") if sure[i] > self.rule.positive]
        for i in above[:1] if self.rule.positives == "best" else above:
            if ids[i] not in found:
                found[ids[i]] = float(odds[i])
                self.counts["positives by score"] += 1
        return found

    def _more(self, given: Candidates, barred: Collection[str], wanted: int) -> list[str]:
        """Candidates of later ranks, unseen by the teacher."""
        if wanted < 1 or not self.rule.fill or given.relevant is None:
            return []
        later = [n for n in given.ids[self.rule.depth : self.rule.fill] if n not in barred]
        chosen = self._drawn(given.query, later, wanted)
        self.counts["negatives not scored"] += len(chosen)
        return chosen

    def _drawn(self, query: str, from_these: Sequence[Any], count: int) -> list[Any]:
        rng = random.Random(f"{self._seed} {query}")
        return rng.sample(list(from_these), min(count, len(from_these)))


def lines_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The record cut into one positive and one negative each, as the released files have it."""
    return [
        {
            **record,
            "positives": [positive],
            "positives_scores": [p_score],
            "negatives": [negative],
            "negatives_scores": [n_score],
        }
        for positive, p_score in zip(record["positives"], record["positives_scores"], strict=True)
        for negative, n_score in zip(record["negatives"], record["negatives_scores"], strict=True)
    ]


def plain(query: str) -> str:
    """A query as it is compared: capitals, blanks and a mark at the end make no other query."""
    return " ".join(query.split()).casefold().rstrip(" ?.!")


class Accuracy:
    """How many labels are right, by judgements that the labelling did not see (Table 5)."""

    def __init__(self, truth: Mapping[str, Mapping[str, int]]):
        self._truth = truth
        self.counts: Counter[str] = Counter()

    def look(self, record: Mapping[str, Any]) -> None:
        """Counts one record; queries that nobody judged do not count."""
        judged = self._truth.get(record["_id"])
        if judged is None:
            return
        for side, relevant in (("positives", True), ("negatives", False)):
            right = sum((judged.get(name, 0) > 0) == relevant for name in record[side])
            self.counts[f"{side}_right"] += right
            self.counts[f"{side}_looked_at"] += len(record[side])


def shares(counts: Mapping[str, int]) -> dict[str, float | int]:
    """Shares of right labels, and how many were looked at, from an `Accuracy`'s counts."""
    found: dict[str, float | int] = {}
    for side in ("positives", "negatives"):
        if looked := counts.get(f"{side}_looked_at", 0):
            found[side] = counts[f"{side}_right"] / looked
            found[f"{side}_looked_at"] = looked
    return found
