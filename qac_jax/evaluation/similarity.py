"""PAIR's Figure 4: is a positive passage nearer to its query than to what ranks beside it?

The passages of a ranking that are not relevant are the negatives p⁻; p⁺ is its positive. Where
there are answers instead of judgements (Natural Questions), passages with an answer are relevant,
and p⁺ is the first of them. The passage-centric loss trains s(p⁺, q) to be above s(p⁺, p⁻).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.errors import UserError
from qac_jax.evaluation import answers
from qac_jax.formats.queries import Query
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run
from qac_jax.retrieval.corpus import by_id


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Means over queries. `by_rank[r]` is s(p⁺, p⁻) of the negatives at rank r + 1 (None: none)."""

    queries: int
    to_query: float  # mean s(p⁺, q)
    to_negatives: float  # mean s(p⁺, p⁻)
    nearer: float  # share of pairs in which the query is the nearer one
    by_rank: tuple[float | None, ...]


def compare(
    queries: np.ndarray,
    positives: np.ndarray,
    negatives: Sequence[np.ndarray],
    ranks: Sequence[Sequence[int]],
    depth: int = 100,
) -> Similarity:
    """queries, positives [Q, D]; negatives[i] [N, D] stand at the ranks (from 1) ranks[i]."""
    to_query = np.einsum("qd,qd->q", positives, queries, dtype=np.float64)
    sums, counts = np.zeros(depth), np.zeros(depth, np.int64)
    nearer, to_negatives = [], []
    for row, (vectors, row_ranks) in enumerate(zip(negatives, ranks, strict=True)):
        scores = vectors.astype(np.float64) @ positives[row].astype(np.float64)
        np.add.at(sums, np.asarray(row_ranks) - 1, scores)
        np.add.at(counts, np.asarray(row_ranks) - 1, 1)
        nearer.append(np.mean(to_query[row] > scores))
        to_negatives.append(scores.mean())
    return Similarity(
        queries=len(queries),
        to_query=float(to_query.mean()),
        to_negatives=float(np.mean(to_negatives)),
        nearer=float(np.mean(nearer)),
        by_rank=tuple(
            s / n if n else None for s, n in zip(sums.tolist(), counts.tolist(), strict=True)
        ),
    )


def of_run(
    encoder: Encoder,
    run: Run,
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, int]],
    passages: Records,
    *,
    depth: int = 100,
    at_most: int = 0,
) -> Similarity:
    """The same for the first `depth` passages of a run; of at most `at_most` queries (0: all)."""
    chosen: list[tuple[str, str, dict[str, int]]] = []
    for query, ranking in run.items():
        right = [name for name, grade in judged.get(query, {}).items() if grade > 0]
        wrong = {n: rank for rank, n in enumerate(ranking.ids, 1) if n not in right}
        if query in queries and right and wrong:
            chosen.append((query, right[0], wrong))
    chosen = chosen[: at_most or None]
    if not chosen:
        raise UserError("no query of the run has a judged positive and negatives; check both")
    names = list(dict.fromkeys(n for _, right, wrong in chosen for n in (right, *wrong)))
    vectors = encoder.encode([encoder.passage_text(r) for r in by_id([passages], names)])
    rows = {name: row for row, name in enumerate(names)}
    return compare(
        encoder.encode([queries[query] for query, _, _ in chosen], "query"),
        vectors[[rows[right] for _, right, _ in chosen]],
        [vectors[[rows[n] for n in wrong]] for _, _, wrong in chosen],
        [list(wrong.values()) for _, _, wrong in chosen],
        depth,
    )


def by_answers(
    run: Run, questions: Iterable[Query], passages: Records, *, depth: int, at_most: int = 0
) -> dict[str, dict[str, int]]:
    """Judgements of a run by answers, of at most `at_most` questions (0: all): reading is slow."""
    judged: dict[str, dict[str, int]] = {}
    for question in questions:
        if question.id not in run or not question.answers:
            continue
        ids = run[question.id].ids[:depth]
        holds = answers.matcher(question.answers)
        places = passages.positions(ids)
        right = {
            name: 1
            for name, place in zip(ids, places, strict=True)
            if place is not None and holds(passages[place]["text"])
        }
        if right and len(right) < len(ids):
            judged[question.id] = right
            if len(judged) == at_most:
                break
    return judged
