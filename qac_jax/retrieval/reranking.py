"""Reranks the candidates of a first ranking by a cross-encoder, piece by piece."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries, shares
from qac_jax.formats.records import Records
from qac_jax.formats.run_file import open_run
from qac_jax.formats.runs import Ranking, Run
from qac_jax.inference.reranker import Reranker, Texts, rerank
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.retrieval import texts
from qac_jax.retrieval.hits import Hit


# Pairs of a piece: an interruption loses at most one piece.
_PAIRS = 1 << 15


@dataclasses.dataclass(frozen=True)
class Reranking:
    """A run, and the cross-encoder that reranks the first `depth` passages of each query."""

    run: Mapping[str, Ranking]
    queries: Mapping[str, str]  # the texts of all queries of the run
    texts: Texts
    depth: int
    model: str
    options: RerankerOptions
    inference: Inference

    @classmethod
    def read(
        cls,
        run: str | os.PathLike[str],
        queries: str | os.PathLike[str],
        texts: Texts,
        *,
        k: int,
        depth: int,
        model: str,
        options: RerankerOptions,
        inference: Inference,
    ) -> Reranking:
        """The first `k` passages of a run file, and the texts of its queries."""
        rankings = open_run(run, k)
        texts_of_queries = {
            query.id: query.text for query in read_queries(queries) if query.id in rankings
        }
        if absent := [name for name in rankings if name not in texts_of_queries]:
            raise UserError(
                f"{len(absent)} queries of the run have no text in {queries}, such as "
                f"{min(absent)!r}; give the queries that were searched with"
            )
        return cls(rankings, texts_of_queries, texts, depth, model, options, inference)

    def pieces(self) -> list[list[str]]:
        """The queries, cut into pieces with about the same number of pairs."""
        names, step = list(self.run), max(1, _PAIRS // self.depth)
        return [names[i : i + step] for i in range(0, len(names), step)]

    @functools.cached_property
    def reranker(self) -> Reranker:
        """Loaded at first use."""
        return Reranker.load(self.model, self.options, self.inference)

    def reranked(self, piece: Sequence[str]) -> Run:
        """The rankings of some queries in the cross-encoder's order.

        The passages after the first `depth` follow in their old order, below.
        """
        first = {query: self.run[query].top(self.depth) for query in piece}
        ordered = rerank(first, self.queries, self.texts, self.reranker)
        return {q: _followed(ordered[q], self.run[q].ids[self.depth :]) for q in piece}


def texts_of(index: Artifact) -> Texts:
    """Ids -> texts with titles, of the passages of an index."""
    passages = [texts.find(location, index.path) for location in index.info["texts"]]
    if None in passages:
        raise UserError(
            f"the texts of {index.path} were moved or deleted; give them with --passages DIR"
        )
    return passage_texts([artifact for artifact in passages if artifact is not None])


def passage_texts(artifacts: Sequence[Artifact]) -> Texts:
    """Ids -> title and text of a passage, as cross-encoders read them."""
    parts = [Records(artifact) for artifact in artifacts]

    def look(ids: Sequence[str]) -> list[str]:
        texts_by_id: dict[str, str] = {}
        for records in parts:
            left = [name for name in ids if name not in texts_by_id]
            for name, place in zip(left, records.positions(left), strict=True):
                if place is not None:
                    texts_by_id[name] = texts.passage_text(records[place])
        absent = [name for name in ids if name not in texts_by_id]
        if absent:
            raise UserError(
                f"passage {absent[0]!r} of the run is not among the passages; give those that "
                "were searched"
            )
        return [texts_by_id[name] for name in ids]

    return look


def _followed(ranking: Ranking, rest: Sequence[str]) -> Ranking:
    """The ranking and, below it, passages that were not reranked, with scores one apart."""
    if not rest:
        return ranking
    lowest = float(ranking.scores[-1])
    below = [lowest - 1 - place for place in range(len(rest))]
    return runs.ranked((*ranking.ids, *rest), [*ranking.scores.tolist(), *below])


def hits(question: str, candidates: Sequence[Hit], model: str | Reranker) -> list[Hit]:
    """Hits for a question in the cross-encoder's order, with its log-odds as scores."""
    if not candidates:
        return []
    if not all(hit.text for hit in candidates):
        raise UserError(
            "the cross-encoder reads texts, and those of the index were moved or deleted; put "
            "them back or build the index again"
        )
    read = [texts.passage_text(dataclasses.asdict(hit)) for hit in candidates]
    reranker = model
    if isinstance(reranker, str):
        reranker = Reranker.load(reranker, RerankerOptions(max_length=0))
    reads_scores = reranker.module.reads_scores
    standing = shares([hit.score for hit in candidates]) if reads_scores else None
    odds = reranker.score([question] * len(candidates), read, standing)
    order = sorted(range(len(candidates)), key=lambda i: -odds[i])
    return [dataclasses.replace(candidates[i], score=float(odds[i])) for i in order]
