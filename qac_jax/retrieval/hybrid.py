"""A hybrid index: a dense index and a BM25 index of the same passages, fused by their scores.

An artefact of kind "hybrid" contains both artefacts (`dense/`, `bm25/`, linked files), the ids in
the dense index's order, `rows.npy` (the row of each of BM25's passages) where the orders differ,
and `hybrid.json` with the settings of the fusion.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qac_jax import artifacts, fields
from qac_jax.artifacts import Artifact, arrays
from qac_jax.errors import UserError, sound
from qac_jax.inference.encoder import Encoder
from qac_jax.retrieval import bm25, fusion, index
from qac_jax.retrieval.bm25 import Bm25
from qac_jax.retrieval.corpus import Hit, Searchable
from qac_jax.retrieval.fusion import Fusion
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.vectors import Windows


KIND = "hybrid"
DESCRIPTION = "hybrid.json"
DENSE, BM25 = "dense", "bm25"
ROWS = "rows.npy"

# Queries whose candidates are in memory at a time.
_TOGETHER = 256


class Candidates(NamedTuple):
    """The passages of one query that either part ranks among its first, in order of their rows."""

    rows: np.ndarray
    scores: np.ndarray  # [2, rows]: dense, BM25
    parts: np.ndarray  # the same, normalised


@dataclasses.dataclass(frozen=True)
class Parts:
    """The two indexes and what brings their scores together.

    Every candidate has its exact score by both, also where only one ranks it among its first, and
    a query's scale comes from the first `depth` passages: so no fused score depends on k. Bruch,
    Gai and Ingber (TOIS 2023), §3, complete the scores of candidates in the same way.
    """

    dense: Index
    bm25: Bm25
    settings: Fusion
    cosine: bool  # whether the dense scores are cosines
    order: np.ndarray  # the dense row of each of BM25's rows; empty where they are the same

    def candidates(
        self, encoder: Encoder, questions: Sequence[str], k: int = 0
    ) -> Iterator[Candidates]:
        """Those of each question: the first k (at least `depth`) of both parts."""
        first = min(self.settings.depth, len(self.dense))
        depth = max(min(k, len(self.dense)), first)
        how, lowest = self.settings.normalization, fusion.COSINE if self.cosine else None
        for start in range(0, len(questions), _TOGETHER):
            asked = questions[start : start + _TOGETHER]
            vectors = encoder.encode(asked, "query")
            near, near_rows = self.dense.search(vectors, depth)
            lexical, lexical_rows = self.by_words(asked, depth)
            lexical = np.where(lexical_rows >= 0, lexical, 0.0)  # none of the query's words
            together = np.concatenate([near_rows, lexical_rows], 1)
            rows = [np.unique(both[both >= 0]) for both in together]
            dense = self._dense_scores(vectors, rows, near, near_rows)
            if windows := self.windows:
                share = self.settings.windows
                best = windows.best(vectors, rows)
                dense = [(1 - share) * w + share * b for w, b in zip(dense, best, strict=True)]
                near = np.full_like(near, -np.inf)
                for mine, scores in zip(near, dense, strict=True):
                    ranked = -np.sort(-scores)[: len(mine)]
                    mine[: len(ranked)] = ranked
            words = self.scores_by_words(asked, rows)
            for number, wanted in enumerate(rows):
                scores = np.stack([dense[number], words[number]]).astype(np.float64)
                known = near[number, :first]
                by_vectors = fusion.scale(known[np.isfinite(known)], how, lowest)
                by_words = fusion.scale(lexical[number, :first], how, fusion.BM25)
                if how == fusion.INFORMATION:
                    by_words = 0.0, self.bm25.information(asked[number])
                offsets, units = np.array([by_vectors, by_words]).T[..., None]
                yield Candidates(wanted, scores, (scores - offsets) / units)

    @property
    def windows(self) -> Windows | None:
        return self.dense.windows if self.settings.windows else None

    def by_words(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """BM25's search, with the dense index's rows."""
        scores, rows = self.bm25.find(questions, k)
        return scores, np.where(rows >= 0, self.order[rows], -1) if len(self.order) else rows

    def scores_by_words(
        self, questions: Sequence[str], rows: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """BM25's scores of some of the dense index's rows for each question."""
        back = np.argsort(self.order)
        theirs = [back[wanted] for wanted in rows] if len(self.order) else rows
        return self.bm25.scores_of(questions, theirs)

    def _dense_scores(
        self,
        queries: np.ndarray,
        wanted: Sequence[np.ndarray],
        scores: np.ndarray,
        rows: np.ndarray,
    ) -> list[np.ndarray]:
        """The scores of the wanted rows: as the search gave them, else from the vectors of an exact
        index; others give none, so they get the lowest score of the ranking.
        """
        if self.dense.description["method"] == index.EXACT:
            vectors = self.dense.vectors.take_each(wanted)
            found = [mine @ query for mine, query in zip(vectors, queries, strict=True)]
        else:
            lowest = np.where(rows >= 0, scores, np.inf).min(axis=1, initial=np.inf)
            found = [np.full(len(mine), low) for mine, low in zip(wanted, lowest, strict=True)]
        for values, mine, gains, ranked in zip(found, wanted, scores, rows, strict=True):
            given = ranked >= 0
            values[np.searchsorted(mine, ranked[given])] = gains[given]
        return found


class Hybrid(Searchable):
    """A finished hybrid index, opened; `encoder`: where its encoder is, if it was moved."""

    def __init__(self, artifact: Artifact, *, encoder: str = ""):
        super().__init__(artifact)
        self._encoder = encoder
        with sound(artifact.path / DESCRIPTION):
            self.settings = Fusion(**artifact.json(DESCRIPTION))
            fields.check(self.settings)
        self.parts = Parts(
            Index.load(artifact.path / DENSE),
            Bm25(artifacts.load(artifact.path / BM25, bm25.KIND)),
            self.settings,
            artifact.info["cosine"],
            arrays.read(artifact.file(ROWS), "int64") if ROWS in artifact.files else np.arange(0),
        )
        order = np.sort(self.parts.order)
        sizes = {len(self), len(self.parts.dense), len(self.parts.bm25), len(order) or len(self)}
        if len(sizes) > 1 or (order != np.arange(len(order))).any():
            raise UserError(f"{artifact.path} joins indexes of different passages; make it again")

    @functools.cached_property
    def encoder(self) -> Encoder:
        place = index.place_of_encoder(self.artifact, self._encoder)
        return Encoder.remembered(self.artifact.info["encoder"], place)

    @property
    def _alone(self) -> bool:
        """Whether one part alone is searched."""
        weight = self.settings.weight
        return weight == 1 or weight == 0 and self.parts.windows is None

    def _fused(
        self, questions: Sequence[str], k: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(fused scores, rows, scores by both parts) of each question's top k; of equal scores the
        earlier row wins."""
        for candidates in self.parts.candidates(self.encoder, questions, k):
            fused = fusion.mixed(candidates.parts, self.settings.weight)
            best = np.argsort(-fused, kind="stable")[:k]
            yield fused[best], candidates.rows[best], candidates.scores.T[best]

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """As of every index: the fused scores, or with weight 0 or 1 those of the one part."""
        if self._alone and self.settings.weight:
            return self.parts.by_words(questions, k)
        if self._alone:
            return self.parts.dense.search(self.encoder.encode(questions, "query"), k)
        scores = np.full((len(questions), k), -np.inf, np.float32)
        rows = np.full((len(questions), k), -1, np.int64)
        for place, (fused, best, _) in enumerate(self._fused(questions, k)):
            scores[place, : len(best)], rows[place, : len(best)] = fused, best
        return scores, rows

    def ask(self, questions: Sequence[str], k: int = 10) -> list[list[Hit]]:
        if self._alone:
            return super().ask(questions, k)
        return [
            [
                dataclasses.replace(hit, scores=dict(zip((DENSE, BM25), each, strict=True)))
                for hit, each in zip(self._hits(rows, fused), both.tolist(), strict=True)
            ]
            for fused, rows, both in self._fused(questions, k)
        ]


def choose_weight(
    parts: Parts,
    encoder: Encoder,
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, int]],
) -> fusion.Choice:
    """BM25's weight, chosen on judged queries; where they leave it open, nearest to the setting."""
    asked = {
        name: relevant
        for name, grades in judged.items()
        if name in queries
        and (relevant := {passage for passage, grade in grades.items() if grade > 0})
    }
    ids, gains = parts.dense.ids, []
    texts = [queries[name] for name in asked]
    for relevant, candidates in zip(asked.values(), parts.candidates(encoder, texts), strict=True):
        right = np.array([ids[row] in relevant for row in candidates.rows.tolist()], bool)
        gains.append(fusion.reciprocal_ranks(candidates.parts, right, fusion.GRID))
    table = np.array(gains).reshape(-1, len(fusion.GRID)).T
    return fusion.choose(table, fusion.GRID, parts.settings.weight)


def order_of(dense: Index, lexical: Bm25) -> np.ndarray:
    """The dense row of each of BM25's rows, empty where they are the same; UserError where the
    passages are not the same."""
    if len(dense) == len(lexical):
        if all(ours == theirs for ours, theirs in zip(dense.ids, lexical.ids, strict=True)):
            return np.arange(0)
        places = {name: row for row, name in enumerate(dense.ids)}
        rows = [places.get(name, -1) for name in lexical.ids]
        if -1 not in rows:
            return np.array(rows, np.int64)
    raise UserError(f"{dense.artifact.path} and {lexical.artifact.path} hold different passages")
