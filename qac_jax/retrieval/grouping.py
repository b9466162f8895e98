"""Groups of similar passages with their queries and a teacher's scores, for distillation.

Ranking losses learn most from passages that are hard to tell apart. TAS-B (Hofstätter et al.,
SIGIR 2021) makes batches of queries of one cluster, whose passages are negatives of one another.
Here the passages are grouped, by a random projection tree over the vectors of the encoder that is
to be trained, and each group comes with all queries of its passages: a passage is encoded once a
step for all of them. The teacher is a hybrid index: the encoder's own scores fused with BM25's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data.judged import generated_id
from qac_jax.errors import UserError
from qac_jax.formats.queries import Query
from qac_jax.formats.records import Records
from qac_jax.retrieval import fusion
from qac_jax.retrieval.hybrid import Hybrid


Record = dict[str, Any]
# Groups whose queries are encoded in one call.
_TOGETHER = 16


def similar(vectors: np.ndarray, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows in groups of `size`, similar ones together; every row is in a group.

    A projection tree (Dasgupta and Freund, 2008): rows are halved by their place on the line
    between two of them. The last groups are filled up with random rows.
    """
    groups: list[np.ndarray] = []
    pieces = [rng.permutation(len(vectors))]
    while pieces:
        rows = pieces.pop()
        if len(rows) <= size:
            groups.append(_filled(rows, size, len(vectors), rng))
            continue
        one, other = vectors[rng.choice(rows, 2, replace=False)]
        rows = rows[np.argsort(vectors[rows] @ (one - other), kind="stable")]
        half = max(1, round(len(rows) / size) // 2) * size
        pieces += [rows[half:], rows[:half]]
    return [groups[place] for place in rng.permutation(len(groups))]


def _filled(rows: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """The rows and random others, `size` in all (fewer only where there are no others)."""
    others = rng.permutation(np.setdiff1d(np.arange(count), rows))[: size - len(rows)]
    return np.concatenate([rows, others])


@dataclasses.dataclass(frozen=True)
class Grouper:
    """Passages and their queries, grouped and scored."""

    teacher: Hybrid
    passages: Records
    queries: Mapping[str, Sequence[Query]]  # passage id -> its queries
    size: int
    per_passage: int
    seed: int

    def groups(self, turn: int) -> Iterator[Record]:
        """One grouping of all passages; groups without queries are left out."""
        rng = np.random.default_rng([self.seed, turn])
        dense = self.teacher.parts.dense
        vectors = dense.vectors.take(np.arange(len(dense))).astype(np.float32)
        grouped = similar(vectors, self.size, rng)
        for start in range(0, len(grouped), _TOGETHER):
            yield from self._scored(grouped[start : start + _TOGETHER], turn, start, rng)

    def _scored(
        self, groups: Sequence[np.ndarray], turn: int, start: int, rng: np.random.Generator
    ) -> Iterator[Record]:
        names = [[self.teacher.parts.dense.ids[row] for row in rows.tolist()] for rows in groups]
        asked = [[query for name in of for query in self._drawn(name, rng)] for of in names]
        questions = [query.text for of in asked for query in of]
        rows = [of for of, queries in zip(groups, asked, strict=True) for _ in queries]
        scores = iter(self.scores(questions, rows))
        for number, (ids, queries) in enumerate(zip(names, asked, strict=True), start):
            if queries:
                yield {
                    "_id": f"{turn}-{number}",
                    "query_ids": [query.id for query in queries],
                    "queries": [query.text for query in queries],
                    "passages": [self._passage(name) for name in ids],
                    "scores": [next(scores).round(6).tolist() for _ in queries],
                }

    def scores(self, questions: Sequence[str], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The teacher's score of each question's rows: 1 is the best passage of both systems."""
        if not questions:
            return []
        parts, weight = self.teacher.parts, self.teacher.settings.weight
        vectors = self.teacher.encoder.encode(list(questions), "query")
        highest = parts.dense.search(vectors, 1)[0][:, 0]
        by_words = parts.by_words(questions, 1)[0][:, 0]
        words = parts.scores_by_words(questions, rows)
        lowest = fusion.COSINE if parts.cosine else None
        found = []
        for place, wanted in enumerate(rows):
            near = parts.dense.vectors.take(wanted).astype(np.float32) @ vectors[place]
            low = float(near.min()) if lowest is None else lowest
            unit = max(float(highest[place]) - low, 1e-6)
            both = np.stack([(near - low) / unit, words[place] / max(float(by_words[place]), 1e-6)])
            found.append(fusion.mixed(both, weight))
        return found

    def _drawn(self, name: str, rng: np.random.Generator) -> list[Query]:
        queries = self.queries.get(name, ())
        chosen = rng.permutation(len(queries))[: self.per_passage]
        return [queries[place] for place in sorted(chosen.tolist())]

    def _passage(self, name: str) -> Record:
        (place,) = self.passages.positions([name])
        if place is None:
            raise UserError(
                f"passage {name!r} of the index is not among the passages; give those that were "
                "indexed"
            )
        record = self.passages[place]
        return {"title": record.get("title") or "", "text": record["text"]}


def by_passage(
    queries: Sequence[Query], judged: Mapping[str, Mapping[str, int]], teacher: Hybrid
) -> dict[str, list[Query]]:
    """The queries of each passage: those that it answers.

    A query without judgements, such as one of a log, goes to the passage that the teacher ranks
    first. Queries of passages that are not in the index are left out.
    """
    known: dict[str, list[Query]] = {name: [] for name in teacher.parts.dense.ids}
    unjudged = []
    for query in queries:
        relevant = [name for name, grade in judged.get(query.id, {}).items() if grade > 0]
        for name in relevant:
            if name in known:
                known[name].append(query)
        if query.id not in judged:
            unjudged.append(query)
    if unjudged:
        _, rows = teacher.find([query.text for query in unjudged], 1)
        for query, row in zip(unjudged, rows[:, 0].tolist(), strict=True):
            if row >= 0:
                known[teacher.parts.dense.ids[row]].append(query)
    return known


def of_contexts(contexts: Sequence[Records]) -> dict[str, list[Query]]:
    """The different queries of each passage, of all artefacts of contexts."""
    found: dict[str, dict[str, None]] = {}
    for records in contexts:
        for record in records:
            known = found.setdefault(record["_id"], {})
            known.update(dict.fromkeys(context["text"] for context in record["contexts"]))
    return {
        name: [Query(generated_id(name, number), text) for number, text in enumerate(texts)]
        for name, texts in found.items()
    }
