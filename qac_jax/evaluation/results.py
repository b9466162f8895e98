"""`metrics.json`: {"mean": {…}, "per_query": {…}}; of several runs, both by the run's name."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from qac_jax.artifacts import Artifact, Writer
from qac_jax.evaluation.metrics import QueryScores
from qac_jax.formats.runs import Run


FILE = "metrics.json"

# Prefix of means over relations (EntityQuestions).
MACRO = "macro_"


@dataclasses.dataclass(frozen=True)
class Result:
    """The metrics of one run on one collection; `per_query` has the queries of the mean."""

    name: str
    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    queries: int
    missing: int = 0

    @classmethod
    def of(cls, name: str, scores: QueryScores, over: str) -> Result:
        per_query = {query: scores.per_query[query] for query in scores.queries(over)}
        return cls(name, scores.means(over), per_query, len(per_query), len(scores.missing))

    def values(self, measure: str) -> dict[str, float]:
        return {query: values[measure] for query, values in self.per_query.items()}

    def lost(self, best: Result, queries: Iterable[str]) -> dict[str, float]:
        """How much lower than the best its means are over those of these queries that count."""
        both = [query for query in queries if query in self.per_query and query in best.per_query]
        of = [(self.per_query[query], best.per_query[query]) for query in both]
        return {m: sum(b[m] - own[m] for own, b in of) / len(of) for m in best.mean} if of else {}

    def hit_rates(self) -> dict[str, float]:
        """hit@k of a question set; means over relations if it has relations."""
        names = [name for name in self.mean if name.startswith("hit@")]
        return {name: self.mean.get(MACRO + name, self.mean[name]) for name in names}


Judge = Callable[[str, Run], Result]  # the name of a run, and the run


_PARTS = ("mean", "per_query", "queries", "missing")


def store(out: Writer, results: Sequence[Result], facts: Mapping[str, Any]) -> None:
    """Writes an artefact of kind "metrics": results, with `facts` (protocol, relevance level,
    comparisons …) beside them; its count and its means."""
    if len(results) == 1:
        record = dataclasses.asdict(results[0])
    else:
        record = {"names": [result.name for result in results]}
        record |= {part: {r.name: getattr(r, part) for r in results} for part in _PARTS}
    with out.open(FILE) as file:
        json.dump({**record, **facts}, file, indent=1, ensure_ascii=False)
        file.write("\n")
    out.count = sum(result.queries for result in results)
    out.info["mean"] = {result.name: result.mean for result in results}


def read(artifact: Artifact) -> tuple[list[Result], dict[str, Any]]:
    """The results of an artefact of kind "metrics", and the facts beside them."""
    with open(os.fspath(artifact.file(FILE)), encoding="utf-8") as file:
        record: dict[str, Any] = json.load(file)
    if "name" in record:
        return [Result(**{part: record.pop(part) for part in ("name", *_PARTS)})], record
    parts = {part: record.pop(part) for part in _PARTS}
    names = record.pop("names")
    return [Result(n, **{part: of[n] for part, of in parts.items()}) for n in names], record
