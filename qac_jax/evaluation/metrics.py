"""Measures of a run: trec_eval's through pytrec_eval, and the MS MARCO script's.

    scores = evaluate(run, judgements, ("ndcg@10", "mrr@10", "hit@50", "map"), level=2)
    scores.mean("ndcg@10")

`mrr@k` and `hit@k` are of the top k passages; the papers of this field print `hit@50` and
`hit@1000` as "R@50" and "R@1k" (the MS MARCO script's recall is "any relevant one among them").
`recall@k` is the share of all relevant passages. `ndcg` uses grades as linear gains; for all other
measures a passage is relevant from grade `level` on.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.formats.runs import Ranking


Judgements = Mapping[str, Mapping[str, int]]

# The queries of a mean. "judged": all that have a judgement (trec_eval -c); "retrieved": those of
# them that are in the run (trec_eval without -c); "answerable": those that have a relevant passage
# (the MS MARCO script). A judged query that is not in the run scores 0.
OVER = ("judged", "retrieved", "answerable")

# Our names -> trec_eval's, which are valid too ("ndcg_cut_10", "Rprec").
_TREC = {"ndcg": "ndcg_cut", "recall": "recall", "map": "map_cut", "precision": "P"}
_TREC_WHOLE = ("map", "ndcg", "recip_rank", "Rprec", "bpref", "num_ret", "num_rel", "num_rel_ret")
_TREC_CUT = ("ndcg_cut", "recall", "map_cut", "P", "success")
_AT = re.compile(r"([a-z_]+)@([1-9]\d*)")
_CUT = re.compile(rf"({'|'.join(_TREC_CUT)})[_.]([1-9]\d*)")
_BATCH = 256


@dataclass(frozen=True)
class QueryScores:
    """The values of all measures on every judged query."""

    per_query: dict[str, dict[str, float]]
    retrieved: frozenset[str]
    answerable: frozenset[str]
    unjudged: int

    @property
    def missing(self) -> list[str]:
        """Judged queries that are not in the run: they score 0."""
        return [query for query in self.per_query if query not in self.retrieved]

    def queries(self, over: str = "judged") -> list[str]:
        """The queries of a mean; see OVER."""
        if over not in OVER:
            raise UserError(f"means over {over!r} queries are unknown; {nearest(over, OVER)}")
        if over == "judged":
            return list(self.per_query)
        chosen = self.retrieved if over == "retrieved" else self.answerable
        return [query for query in self.per_query if query in chosen]

    def mean(self, measure: str, over: str = "judged") -> float:
        """The mean of a measure; of trec_eval's counts (num_…) the sum, as trec_eval does."""
        values = [self.per_query[query][measure] for query in self.queries(over)]
        total = math.fsum(values)
        return total if measure.startswith("num_") else total / len(values) if values else 0.0

    def means(self, over: str = "judged") -> dict[str, float]:
        measures = next(iter(self.per_query.values()), {})
        return {measure: self.mean(measure, over) for measure in measures}


def evaluate(
    run: Mapping[str, Ranking], judgements: Judgements, measures: Sequence[str], level: int = 1
) -> QueryScores:
    """Scores of a run on every query of the judgements, in their order."""
    if level < 1:
        raise UserError(f"relevance level {level}; expected 1 or more (2 for TREC DL)")
    if not judgements:
        raise UserError("there are no judgements; nothing can be measured")
    judgements = {query: grades for query, grades in judgements.items() if grades}
    own, trec = {}, {}
    for measure in measures:
        parsed = _parse(measure)
        if isinstance(parsed, str):
            trec[measure] = parsed
        else:
            own[measure] = parsed
    retrieved = frozenset(q for q in judgements if q in run and run[q].ids)
    if not retrieved:
        example, other = next(iter(judgements)), next(iter(run), "")
        raise UserError(
            f"the run holds none of the {len(judgements)} judged queries (judged: {example!r}, "
            f"run: {other!r}); check that both are of one collection"
        )
    relevant = {
        query: frozenset(passage for passage, grade in grades.items() if grade >= level)
        for query, grades in judgements.items()
    }
    per_query = {query: dict.fromkeys(measures, 0.0) for query in judgements}
    for query in retrieved:
        for measure, (function, cut) in own.items():
            per_query[query][measure] = function(run[query].ids[:cut], relevant[query], cut)
    if trec:
        # In trec_eval a negative grade means "not judged"; a query without other grades makes it
        # loop for ever.
        known = {
            query: {passage: grade for passage, grade in grades.items() if grade >= 0}
            for query, grades in judgements.items()
        }
        asked = [q for q in judgements if q in retrieved and known[q]]
        for scored in _scored(run, known, asked, sorted(set(trec.values())), level):
            for query, values in scored.items():
                for measure, name in trec.items():
                    per_query[query][measure] = values[name]
        for query in per_query.keys() - retrieved:
            # The number of relevant passages does not depend on the run.
            if "num_rel" in per_query[query]:
                per_query[query]["num_rel"] = float(len(relevant[query]))
    return QueryScores(
        per_query,
        retrieved,
        frozenset(query for query, passages in relevant.items() if passages),
        sum(query not in judgements for query in run),
    )


def _scored(
    run: Mapping[str, Ranking],
    judgements: Judgements,
    queries: Sequence[str],
    measures: Sequence[str],
    level: int,
) -> Iterator[Mapping[str, Mapping[str, float]]]:
    """trec_eval's measures of queries, some at a time."""
    import pytrec_eval

    evaluator = pytrec_eval.RelevanceEvaluator(judgements, set(measures), level)
    for batch in _batches(queries, _BATCH):
        yield evaluator.evaluate({query: _as_dict(run[query]) for query in batch})


def check(measures: Sequence[str]) -> None:
    """Raises an error for unknown measures, before anything is read."""
    for measure in measures:
        _parse(measure)
    if not measures:
        raise UserError("no measure is named; name some, such as ndcg@10,mrr@10,recall@100")


def depth_of(measure: str) -> int | None:
    """The k of a measure; None if it is of the whole ranking."""
    match = _AT.fullmatch(measure) or _CUT.fullmatch(measure)
    return int(match[2]) if match else None


def first_relevant(ids: Sequence[str], relevant: frozenset[str]) -> int | None:
    """The rank (from 1) of the first relevant passage."""
    return next((rank for rank, name in enumerate(ids, 1) if name in relevant), None)


def _reciprocal(ids: Sequence[str], relevant: frozenset[str], cut: int) -> float:
    rank = first_relevant(ids, relevant)
    return 1.0 / rank if rank else 0.0


def _hit(ids: Sequence[str], relevant: frozenset[str], cut: int) -> float:
    return float(not relevant.isdisjoint(ids))


def _capped_recall(ids: Sequence[str], relevant: frozenset[str], cut: int) -> float:
    """BEIR's recall where there are more relevant passages than k (TREC-COVID)."""
    retrieved = sum(name in relevant for name in ids)
    return retrieved / min(cut, len(relevant)) if relevant else 0.0


_Own = Callable[[Sequence[str], frozenset[str], int], float]
_OWN: dict[str, _Own] = {"mrr": _reciprocal, "hit": _hit, "capped_recall": _capped_recall}


def _parse(measure: str) -> str | tuple[_Own, int]:
    """trec_eval's name, or our function and its k."""
    if measure in _TREC_WHOLE:
        return measure
    if match := _CUT.fullmatch(measure):
        return f"{match[1]}_{match[2]}"
    match = _AT.fullmatch(measure)
    if match and match[1] in _OWN:
        return _OWN[match[1]], int(match[2])
    if match and match[1] in _TREC:
        return f"{_TREC[match[1]]}_{match[2]}"
    names = [f"{name}@10" for name in (*_OWN, *_TREC)] + [*_TREC_WHOLE]
    raise UserError(f"unknown measure {measure!r}; {nearest(measure, names)}")


def _as_dict(ranking: Ranking) -> dict[str, float]:
    return dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    stream = iter(items)
    while batch := list(itertools.islice(stream, size)):
        yield batch
