"""Measures of a run: trec_eval's through pytrec_eval, and the MS MARCO script's.

`mrr@k` and `hit@k` are of the top k passages; the papers of this field print `hit@50` and
`hit@1000` as "R@50" and "R@1k" (the MS MARCO script's recall is "any relevant one among them").
`recall@k` is the share of all relevant passages. `ndcg` uses grades as linear gains; for all other
measures a passage is relevant from grade `level` on.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qac_jax.errors import UserError, nearest
from qac_jax.formats.runs import Ranking


Judgements = Mapping[str, Mapping[str, int]]

# The queries of a mean. "judged": all that have a judgement (trec_eval -c); "retrieved": those of
# them that are in the run (trec_eval without -c); "answerable": those that have a relevant passage
# (the MS MARCO script). A judged query that is not in the run scores 0.
OVER = ("judged", "retrieved", "answerable")

_TREC_WHOLE = ("map", "ndcg", "recip_rank", "Rprec", "bpref", "num_ret", "num_rel", "num_rel_ret")
# The forms of measures; K is a number.
MEASURES = (
    *("ndcg@K", "mrr@K", "recall@K", "hit@K", "map@K", "precision@K", "capped_recall@K"),
    *_TREC_WHOLE,
    *("ndcg_cut_K", "recall_K", "map_cut_K", "P_K", "success_K"),
)

# Our names -> trec_eval's, which are valid too ("ndcg_cut_10", "Rprec").
_TREC = {"ndcg": "ndcg_cut", "recall": "recall", "map": "map_cut", "precision": "P"}
_TREC_CUT = ("ndcg_cut", "recall", "map_cut", "P", "success")
_AT = re.compile(r"([a-z_]+)@([1-9]\d*)")
_CUT = re.compile(rf"({'|'.join(_TREC_CUT)})[_.]([1-9]\d*)")
_BATCH = 256


@dataclass(frozen=True)
class QueryScores:
    per_query: dict[str, dict[str, float]]
    retrieved: frozenset[str]
    answerable: frozenset[str]
    unjudged: int

    @property
    def missing(self) -> list[str]:
        """Judged queries that are not in the run: they score 0."""
        return [query for query in self.per_query if query not in self.retrieved]

    def queries(self, over: str = "judged") -> list[str]:
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
    judgements = {query: grades for query, grades in judgements.items() if grades}
    parsed = {measure: _parse(measure) for measure in measures}
    own = {measure: of for measure, of in parsed.items() if not isinstance(of, str)}
    trec = {measure: of for measure, of in parsed.items() if isinstance(of, str)}
    retrieved = frozenset(q for q in judgements if q in run and run[q].ids)
    if not retrieved:
        example, other = next(iter(judgements), ""), next(iter(run), "")
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
        import pytrec_eval

        # In trec_eval a negative grade means "not judged"; a query without other grades makes it
        # loop for ever.
        known = {
            query: {passage: grade for passage, grade in grades.items() if grade >= 0}
            for query, grades in judgements.items()
        }
        asked = [q for q in judgements if q in retrieved and known[q]]
        evaluator = pytrec_eval.RelevanceEvaluator(known, set(trec.values()), level)
        for start in range(0, len(asked), _BATCH):
            some = {
                q: dict(zip(run[q].ids, run[q].scores.tolist(), strict=True))
                for q in asked[start : start + _BATCH]
            }
            scored = evaluator.evaluate(some)
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


_Own = Callable[[Sequence[str], frozenset[str], int], float]
# Of the top k passages' ids, the relevant ones, and k. Capped recall is BEIR's, for queries with
# more relevant passages than k (TREC-COVID).
_OWN: dict[str, _Own] = {
    "mrr": lambda ids, right, cut: next(
        (1.0 / rank for rank, name in enumerate(ids, 1) if name in right), 0.0
    ),
    "hit": lambda ids, right, cut: float(not right.isdisjoint(ids)),
    "capped_recall": lambda ids, right, cut: (
        sum(name in right for name in ids) / min(cut, len(right)) if right else 0.0
    ),
}


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
