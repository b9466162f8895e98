"""Pseudo-labels: a teacher's scores of a retriever's candidates become training data.

PAIR (Ren et al., 2021) and RocketQA (Qu et al., 2021): a candidate that the teacher scores above
s_pos is a positive, one below s_neg a negative. Candidates are in the retriever's order. Queries
may have judgements (then their negatives are denoised and, with `extend`, positives added) or not.
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
    """A query's passages in the retriever's order.

    odds: the teacher's log-odds of the first candidates (None: without a teacher, all that are not
    relevant are negatives). relevant: the judged positives (None: the query has no judgements).
    excluded: unlabelled passages that may be relevant: they are never negatives.
    """

    query: str
    text: str
    ids: Sequence[str]
    odds: np.ndarray | None
    relevant: Mapping[str, float] | None = None
    excluded: Collection[str] = ()


class Labeller:
    """Candidates to records, counting what is kept and why the rest is left out."""

    def __init__(self, rule: Labelling, seed: int = 111):
        self.rule, self._seed = rule, seed
        self.counts: Counter[str] = Counter()
        self.histogram = np.zeros(BINS, np.int64)

    def label(self, candidates: Candidates) -> dict[str, Any] | None:
        """A record of an artefact of negatives; None for a query without a positive or negative."""
        rule = self.rule
        ids = candidates.ids[: rule.depth]
        if candidates.odds is None:
            odds = sure = np.zeros(len(ids))
        else:
            odds = candidates.odds[: rule.depth]
            sure = probability(odds)
            self.histogram += np.histogram(sure, BINS, (0.0, 1.0))[0]
        self.counts["queries"] += 1
        positives = self._positives(candidates, ids, odds, sure)
        if not positives:
            self.counts["queries without a positive"] += 1
            return None
        barred = {*positives, *candidates.excluded, *(candidates.relevant or ())}
        below = [i for i in range(len(ids)) if sure[i] < rule.negative and ids[i] not in barred]
        if rule.order == "sampled":
            below = self._drawn(candidates.query, below, rule.count)
        negatives = {ids[i]: float(odds[i]) for i in below[: rule.count]}
        self.counts["negatives"] += len(negatives)
        for name in self._more(candidates, barred, rule.count - len(negatives)):
            negatives[name] = 0.0  # not scored
        if not negatives:
            self.counts["queries without a negative"] += 1
            return None
        self.counts["queries kept"] += 1
        self.counts["positives"] += len(positives)
        return {
            "_id": candidates.query,
            "query": candidates.text,
            "positives": list(positives),
            "negatives": list(negatives),
            "positives_scores": [round(value, 6) for value in positives.values()],
            "negatives_scores": [round(value, 6) for value in negatives.values()],
        }

    def _positives(
        self, candidates: Candidates, ids: Sequence[str], odds: np.ndarray, sure: np.ndarray
    ) -> dict[str, float]:
        positives = dict(candidates.relevant or {})
        if candidates.relevant is not None and not self.rule.extend:
            return positives
        above = [int(i) for i in np.argsort(-odds, kind="stable") if sure[i] > self.rule.positive]
        for i in above[:1] if self.rule.positives == "best" else above:
            if ids[i] not in positives:
                positives[ids[i]] = float(odds[i])
                self.counts["positives by score"] += 1
        return positives

    def _more(self, candidates: Candidates, barred: Collection[str], wanted: int) -> list[str]:
        """Candidates of later ranks, which the teacher did not score."""
        if wanted < 1 or not self.rule.fill or candidates.relevant is None:
            return []
        later = [n for n in candidates.ids[self.rule.depth : self.rule.fill] if n not in barred]
        chosen = self._drawn(candidates.query, later, wanted)
        self.counts["negatives not scored"] += len(chosen)
        return chosen

    def _drawn(self, query: str, from_these: Sequence[Any], count: int) -> list[Any]:
        rng = random.Random(f"{self._seed} {query}")
        return rng.sample(list(from_these), min(count, len(from_these)))


def lines_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records with one positive and one negative each, as in the released files."""
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
    """A query for comparison: without regard to case, blanks and a mark at the end."""
    return " ".join(query.split()).casefold().rstrip(" ?.!")


class Accuracy:
    """How many labels are right, by judgements that were not used for labelling (PAIR, Table 5)."""

    def __init__(self, truth: Mapping[str, Mapping[str, int]]):
        self._truth = truth
        self.counts: Counter[str] = Counter()

    def look(self, record: Mapping[str, Any]) -> None:
        """Counts one record; queries without judgements are ignored."""
        judged = self._truth.get(record["_id"])
        if judged is None:
            return
        for side, relevant in (("positives", True), ("negatives", False)):
            right = sum((judged.get(name, 0) > 0) == relevant for name in record[side])
            self.counts[f"{side}_right"] += right
            self.counts[f"{side}_looked_at"] += len(record[side])


def shares(counts: Mapping[str, int]) -> dict[str, float | int]:
    """Shares of right labels, and how many labels were checked, from an `Accuracy`'s counts."""
    result: dict[str, float | int] = {}
    for side in ("positives", "negatives"):
        if looked := counts.get(f"{side}_looked_at", 0):
            result[side] = counts[f"{side}_right"] / looked
            result[f"{side}_looked_at"] = looked
    return result
