"""Labels the queries of a run: their candidates are scored and become records."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking
from qac_jax.inference.reranker import Reranker
from qac_jax.retrieval.labelling import Accuracy, Candidates, Labeller, lines_of, plain, shares
from qac_jax.retrieval.settings import Labelling
from qac_jax.retrieval.texts import passage_text


Judgements = dict[str, dict[str, int]]
# Answers of a question -> whether a text contains one of them.
Matcher = Callable[[Sequence[str]], Callable[[str], bool]]


@dataclasses.dataclass(frozen=True)
class RunLabels:
    """A run and what is known about its queries; at most one of `scores` and `reranker`."""

    rule: Labelling
    seed: int
    pairs: bool  # one positive and one negative a record
    run: Mapping[str, Ranking]
    scores: Mapping[str, Ranking] | None
    reranker: Reranker | None
    passages: Records
    judged: Judgements
    more: Judgements
    truth: Judgements
    answers: Mapping[str, Sequence[str]]
    matcher: Matcher

    def records(
        self, queries: Sequence[Query], facts: dict[str, Any], advance: Callable[[int], None]
    ) -> Iterator[dict[str, Any]]:
        """Labelled records; afterwards `facts` has counts, histogram and accuracy."""
        labeller, accuracy = Labeller(self.rule, self.seed), Accuracy(self.truth)
        holding = {q.id: self._holding(q.id) for q in queries if q.id in self.answers}
        relevant = {query.id: self._relevant(query.id, holding) for query in queries}
        scored = self._scored(queries, relevant)
        for query in queries:
            ids, odds = self.run[query.id].ids, scored[query.id]
            known = relevant[query.id]
            candidates = Candidates(
                query.id,
                query.text,
                ids,
                np.array([odds[name] for name in ids[: self.rule.depth]]) if odds else None,
                None if known is None else {name: odds.get(name, 0.0) for name in known},
                {*self.more.get(query.id, ()), *holding.get(query.id, ())},
            )
            record = labeller.label(candidates)
            if record is not None:
                accuracy.look(record)
                yield from lines_of(record) if self.pairs else [record]
            advance(1)
        facts["counts"] = dict(labeller.counts)
        facts["histogram"] = labeller.histogram.tolist()
        facts["accuracy"] = dict(accuracy.counts)

    def _relevant(self, query: str, holding: Mapping[str, list[str]]) -> list[str] | None:
        """Passages that are positives whatever the teacher's score; None: nothing is known."""
        if query in self.judged:
            return [name for name, grade in self.judged[query].items() if grade > 0]
        return holding[query][:1] if query in holding else None

    def _holding(self, query: str) -> list[str]:
        """Candidates whose text contains an answer, in order."""
        has_answer = self.matcher(self.answers[query])
        ids = self.run[query].ids[: self.rule.depth]
        return [
            name
            for name, record in zip(ids, self._read(ids), strict=True)
            if has_answer(record["text"])
        ]

    def _scored(
        self, queries: Sequence[Query], relevant: Mapping[str, list[str] | None]
    ) -> dict[str, dict[str, float]]:
        """Log-odds of every query's first candidates, and of its known positives."""
        wanted = {
            query.id: list(
                dict.fromkeys(
                    [*self.run[query.id].ids[: self.rule.depth], *(relevant[query.id] or ())]
                )
            )
            for query in queries
        }
        if self.scores is not None:
            return {query.id: self._known(query.id) for query in queries}
        if self.reranker is None:
            return {query.id: {} for query in queries}
        names = list(dict.fromkeys(name for ids in wanted.values() for name in ids))
        texts = dict(zip(names, map(passage_text, self._read(names)), strict=True))
        query_texts = [query.text for query in queries for _ in wanted[query.id]]
        read = [texts[name] for query in queries for name in wanted[query.id]]
        odds = iter(self.reranker.score(query_texts, read).tolist())
        return {name: {passage: next(odds) for passage in wanted[name]} for name in wanted}

    def _known(self, query: str) -> dict[str, float]:
        """The scores of the reranked run."""
        assert self.scores is not None
        candidates = self.run[query].ids[: self.rule.depth]
        scores = {}
        if query in self.scores:
            ranking = self.scores[query]
            scores = dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))
        absent = [name for name in candidates if name not in scores]
        if absent:
            raise UserError(
                f"passage {absent[0]!r} of query {query!r} has no score in --scored; reorder the "
                f"same run with the teacher, to rank {len(candidates)} at least"
            )
        return scores

    def _read(self, names: Sequence[str]) -> list[dict[str, Any]]:
        records = []
        for name, place in zip(names, self.passages.positions(names), strict=True):
            if place is None:
                raise UserError(
                    f"passage {name!r} is not among the passages; give those that were searched "
                    "and judged"
                )
            records.append(self.passages[place])
        return records


def judgements(path: str) -> Judgements:
    """query -> passage -> grade; empty without a file."""
    return by_query(read_judgements(path)) if path else {}


def questions(path: str) -> dict[str, tuple[str, ...]]:
    """query -> answers; empty without a file."""
    answers = {query.id: query.answers for query in read_queries(path)} if path else {}
    if path and not any(answers.values()):
        raise UserError(f"the questions of {path} lack answers; give a file with answers")
    return answers


def queries_to_label(
    queries: str, run: Collection[str], exclude: Sequence[str | os.PathLike[str]]
) -> tuple[list[Query], Counter[str]]:
    """The queries of the run, without those of test files; and how many are left out, and why."""
    # File by file: DPR's questions are numbered from 0 in each.
    barred = {plain(query.text) for file in exclude for query in read_queries(file)}
    kept: list[Query] = []
    removed: Counter[str] = Counter()
    for query in read_queries(queries):
        if query.id not in run:
            removed["queries that the run lacks"] += 1
        elif plain(query.text) in barred:
            removed["queries of a dev or test set"] += 1
        else:
            kept.append(query)
    if not kept:
        raise UserError("no query of the run is left to label; check the queries and --exclude")
    return kept, removed


def summed(
    pieces: Sequence[Mapping[str, Any]], removed: Mapping[str, int], *, judged: bool
) -> dict[str, Any]:
    """Counts, histogram and (where there are judgements to compare with) accuracy of all pieces."""
    counts: Counter[str] = Counter(removed)
    right: Counter[str] = Counter()
    for facts in pieces:
        counts.update(facts["counts"])
        right.update(facts["accuracy"])
    histogram = zip(*(facts["histogram"] for facts in pieces), strict=True)
    info = {"counts": dict(counts), "histogram": [sum(column) for column in histogram]}
    return {**info, "accuracy": shares(right)} if judged else info
