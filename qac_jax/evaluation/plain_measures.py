"""trec_eval's measures at a depth in plain Python: for machines without pytrec_eval.

    at("ndcg_cut_10", ids, {"p3": 1}, level=1)

The values are trec_eval's to the last digits: a test compares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from qac_jax.errors import UserError


_NAME = re.compile(r"(ndcg_cut|recall|P|success)_([1-9]\d*)")


def check(measures: Sequence[str]) -> None:
    """Raises for a measure that needs pytrec_eval."""
    for measure in measures:
        if not _NAME.fullmatch(measure):
            raise UserError(
                f"the measure {measure} needs pytrec_eval; pip install pytrec_eval-terrier, or "
                "choose mrr@K, hit@K, ndcg@K, recall@K, precision@K"
            )


def at(measure: str, ids: Sequence[str], grades: Mapping[str, int], level: int) -> float:
    """A measure of one query, by trec_eval's name; `ids` in trec_eval's order."""
    match = _NAME.fullmatch(measure)
    assert match is not None, measure
    cut = int(match[2])
    return _MEASURES[match[1]](ids[:cut], grades, level, cut)


def _ndcg(ids: Sequence[str], grades: Mapping[str, int], level: int, cut: int) -> float:
    """Grades are linear gains, whatever the level."""
    ideal = _gain(sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:cut])
    return _gain([max(grades.get(name, 0), 0) for name in ids]) / ideal if ideal else 0.0


def _gain(grades: Sequence[int]) -> float:
    total = 0.0
    for place, grade in enumerate(grades):
        if grade:
            total += grade / math.log2(place + 2)
    return total


def _recall(ids: Sequence[str], grades: Mapping[str, int], level: int, cut: int) -> float:
    relevant = sum(grade >= level for grade in grades.values())
    return _relevant(ids, grades, level) / relevant if relevant else 0.0


def _precision(ids: Sequence[str], grades: Mapping[str, int], level: int, cut: int) -> float:
    return _relevant(ids, grades, level) / cut


def _success(ids: Sequence[str], grades: Mapping[str, int], level: int, cut: int) -> float:
    return float(_relevant(ids, grades, level) > 0)


def _relevant(ids: Sequence[str], grades: Mapping[str, int], level: int) -> int:
    return sum(grades.get(name, 0) >= level for name in ids)


_Measure = Callable[[Sequence[str], Mapping[str, int], int, int], float]
_MEASURES: dict[str, _Measure] = {
    "ndcg_cut": _ndcg,
    "recall": _recall,
    "P": _precision,
    "success": _success,
}
