"""Candidates of queries with a teacher's scores, which a retriever learns by distillation.

The teacher is a ranking, such as the fusion of BM25's and an encoder's: no judgement is needed
(GPL, Wang et al. 2022, where the teacher is a cross-encoder). A query's positive is the passage
that it was generated from, if the teacher ranks it high enough (consistency filtering,
Promptagator, Dai et al. 2022); of a query that nobody judged, the teacher's first passage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax.formats.runs import Ranking, Run
from qac_jax.retrieval.settings import Teaching


class Teacher:
    """Rankings to records of an artefact of negatives, counting what is left out."""

    def __init__(self, scored: Run, others: Sequence[Run], rule: Teaching):
        self._scored, self._others, self._rule = scored, others, rule
        self.counts: Counter[str] = Counter()

    def records(
        self, queries: Mapping[str, str], judged: Mapping[str, Mapping[str, int]]
    ) -> Iterator[dict[str, Any]]:
        """A record for each query that the teacher has enough to say about."""
        for name, text in queries.items():
            self.counts["queries"] += 1
            ranking = self._scored.get(name)
            if ranking is None or len(ranking.ids) < 2:
                self.counts["queries without a ranking"] += 1
                continue
            record = self._record(name, text, ranking, judged.get(name, {}))
            if record is not None:
                self.counts["queries kept"] += 1
                yield record

    def _record(
        self, name: str, text: str, ranking: Ranking, grades: Mapping[str, int]
    ) -> dict[str, Any] | None:
        rule = self._rule
        scores = dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))
        lowest = min(scores.values())
        relevant = [passage for passage, grade in grades.items() if grade > 0]
        positives = relevant
        if relevant and rule.consistent:
            first = frozenset(ranking.ids[: rule.consistent])
            positives = [passage for passage in relevant if passage in first]
            if not positives:
                self.counts["queries whose passage the teacher ranks lower"] += 1
                return None
        if not relevant:
            positives = [ranking.ids[0]]
            self.counts["queries with the teacher's first passage as the positive"] += 1
        negatives = self._candidates(name, ranking, frozenset(relevant or positives))
        if not negatives:
            self.counts["queries without another candidate"] += 1
            return None
        return {
            "_id": name,
            "query": text,
            "positives": positives,
            "negatives": negatives,
            "positives_scores": [round(scores.get(p, lowest), 6) for p in positives],
            "negatives_scores": [round(scores.get(p, lowest), 6) for p in negatives],
        }

    def _candidates(self, name: str, ranking: Ranking, taken: frozenset[str]) -> list[str]:
        """The first passages of the teacher, then of the other rankings by turns."""
        chosen = [p for p in ranking.ids if p not in taken][: self._rule.top]
        known = {*chosen, *taken}
        rankings = [ranking] + [run[name] for run in self._others if name in run]
        by_turns = (
            r.ids[rank]
            for rank in range(max(len(r.ids) for r in rankings))
            for r in rankings[1:]
            if rank < len(r.ids)
        )
        for passage in (*by_turns, *ranking.ids):
            if len(chosen) >= self._rule.count:
                break
            if passage not in known:
                known.add(passage)
                chosen.append(passage)
        return chosen
