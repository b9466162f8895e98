"""One version of a living index, opened: it stays as it is, whatever happens to the folder.

BM25's scores are computed from the statistics of all passages that are not deleted: they equal
those of a fresh BM25 index of these passages in the same order, bit for bit.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qac_jax.live import filters, manifest
from qac_jax.live.filters import Where
from qac_jax.live.manifest import LiveSettings, Manifest
from qac_jax.live.segment import Postings, Segment
from qac_jax.retrieval import fusion
from qac_jax.retrieval.bm25 import Analyzer, Scoring
from qac_jax.retrieval.corpus import Hit


# Rows whose scores are in memory at a time.
_BLOCK = 1 << 16
# Below this number of allowed rows, or this share of a segment, each of them is scored.
_FEW, _SMALL_SHARE = 5_000, 0.02

Nearest = tuple[np.ndarray, np.ndarray]  # scores float32, rows int64 [queries, k]; row -1 for none


def nearest(segment: Segment, queries: np.ndarray, k: int, allowed: np.ndarray) -> Nearest:
    """The top k allowed rows for each query, best first; of equal scores the earlier row wins.

    Exact, but for ScaNN's approximation over a large segment.
    """
    count = int(allowed.sum())
    k = min(k, count)
    if not k:
        return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    few = count <= max(_FEW, _SMALL_SHARE * len(segment))
    if segment.scann is not None and not few:
        found = _approximate(segment, queries, k, allowed)
        if found is not None:
            return found
    return _exact(segment, queries, k, None if count == len(segment) else np.flatnonzero(allowed))


def _approximate(
    segment: Segment, queries: np.ndarray, k: int, allowed: np.ndarray
) -> Nearest | None:
    """ScaNN knows no filters: it is asked for more rows, and those not allowed are left out.

    None where that would be more work than scoring all allowed rows.
    """
    assert segment.scann is not None
    share = float(allowed.mean())
    wanted = k if share == 1 else int(k / share * 1.2) + 20
    while wanted <= max(len(segment) // 8, k):
        scores, rows = segment.scann.search(queries, min(wanted, len(segment)))
        fits = (rows >= 0) & allowed[rows]
        if (fits.sum(1) >= k).all():
            # Those that fit stand first, in their order.
            order = np.argsort(~fits, axis=1, kind="stable")[:, :k]
            return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        wanted *= 2
    return None


def _exact(segment: Segment, queries: np.ndarray, k: int, rows: np.ndarray | None) -> Nearest:
    """Of all rows, or of some; block by block."""
    best = [np.zeros(0, np.float32)] * len(queries)
    places = [np.zeros(0, np.int64)] * len(queries)
    for start in range(0, len(segment) if rows is None else len(rows), _BLOCK):
        chosen = slice(start, start + _BLOCK) if rows is None else rows[start : start + _BLOCK]
        block = segment.vectors[chosen].astype(np.float32, copy=False)
        gains = queries @ block.T
        numbers = np.arange(start, start + len(block)) if rows is None else chosen
        for query, scores in enumerate(gains):
            merged = np.concatenate([best[query], scores])
            first = top(merged, k)
            best[query] = merged[first]
            places[query] = np.concatenate([places[query], numbers])[first]
    return np.stack(best), np.stack(places).astype(np.int64)


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the top k scores, best first; of equal scores the earlier place wins."""
    if len(scores) > k:
        last = np.partition(scores, len(scores) - k)[len(scores) - k]
        better = np.flatnonzero(scores > last)
        equal = np.flatnonzero(scores == last)[: k - len(better)]
        chosen = np.sort(np.concatenate([better, equal]))
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


# Words whose scores are kept between queries, by the number of their passages.
_KEPT_WORDS = 1 << 23
# What a word costs that no passage has.
_ALONE = 256

Gains = tuple[np.ndarray, np.ndarray]  # rows of the index, their scores


class Words:
    """The words of several segments, one after the other."""

    def __init__(
        self,
        segments: Sequence[Postings],
        alive: Sequence[np.ndarray],
        analyzer: Analyzer,
        scoring: Scoring,
    ):
        self.analyzer, self._scoring = analyzer, scoring
        self._segments, self._alive = segments, alive
        self._starts = np.cumsum([0, *(len(mask) for mask in alive)])
        self.rows = int(self._starts[-1])
        self.count = sum(int(mask.sum()) for mask in alive)
        pairs = zip(segments, alive, strict=True)
        words = sum(int(part.lengths[mask].sum(dtype=np.int64)) for part, mask in pairs)
        self._mean = np.float64(words) / max(self.count, 1)
        self._known: dict[str, Gains] = {}
        self._size, self._lock = 0, threading.Lock()

    def scores(self, question: str) -> np.ndarray:
        """float32 [rows]: 0 where a passage has none of the words, or is deleted."""
        total = np.zeros(self.rows, np.float32)
        for word in self.analyzer.words(question) if self.rows else ():
            rows, gains = self._gains(word)
            total[rows] += gains
        return total

    def by_word(self, question: str, row: int) -> list[tuple[str, float]]:
        """The score of a row, word by word: (the question's word, what it gives)."""
        found: dict[str, float] = {}
        stems = self.analyzer.words(question) if self.rows else ()
        for word in stems:
            rows, gains = self._gains(word)
            here = np.flatnonzero(rows == row)
            if len(here):
                found[word] = found.get(word, 0.0) + float(gains[here[0]])
        return sorted(found.items(), key=lambda pair: -pair[1])

    def _gains(self, word: str) -> Gains:
        with self._lock:
            known = self._known.get(word)
        if known is None:
            known = self._computed(word)
            with self._lock:
                size = len(known[0]) + _ALONE
                if self._size + size > _KEPT_WORDS:
                    self._known, self._size = {}, 0
                self._known[word] = known
                self._size += size
        return known

    def _computed(self, word: str) -> Gains:
        every = []
        for part, mask, start in zip(self._segments, self._alive, self._starts, strict=False):
            rows, counts = part.of_word(word)
            alive = mask[rows]
            mine = rows[alive]
            every.append((mine + start, counts[alive], part.lengths[mine]))
        rows, counts, lengths = (np.concatenate(arrays) for arrays in zip(*every, strict=True))
        if not len(rows):
            return rows.astype(np.int64), np.zeros(0, np.float32)
        from bm25s import scoring  # slow to import

        how = self._scoring
        rarity = np.float32(scoring._select_idf_scorer(how.variant)(len(rows), self.count))
        weights = scoring._select_tfc_scorer(how.variant)(
            counts.astype(np.float32), lengths, self._mean, how.k1, how.b, None
        )
        return rows.astype(np.int64), (rarity * weights).astype(np.float32)


# Filters whose rows are kept.
_KEPT = 16
DENSE, BM25 = "dense", "bm25"


class Found(NamedTuple):
    """The ranking of one question, best first."""

    rows: np.ndarray
    scores: np.ndarray
    parts: np.ndarray | None  # [2, rows]: the scores of vectors and of BM25, where both are fused


class Snapshot:
    """Rows are numbered across the segments, in the order in which passages were added."""

    def __init__(
        self, folder: Path, version: Manifest, segments: Sequence[Segment], settings: LiveSettings
    ):
        self.manifest, self.segments, self.settings = version, segments, settings
        self.alive = [manifest.alive(folder, entry) for entry in version.segments]
        self.starts = np.cumsum([0, *(len(segment) for segment in segments)])
        self._begins: list[int] = self.starts.tolist()
        for segment in segments:
            segment.open()
        self.analyzer = settings.analyzer()
        self._masks: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def version(self) -> int:
        return self.manifest.version

    @functools.cached_property
    def words(self) -> Words:
        parts = [segment.words for segment in self.segments]
        return Words(parts, self.alive, self.analyzer, self.settings.scoring)

    def allowed(self, where: Where | None = None) -> np.ndarray:
        """bool [rows]: those that are not deleted and fit a filter."""
        conditions = filters.parsed(where)
        key = repr(conditions)
        with self._lock:
            known = self._masks.get(key)
        if known is None:
            masks = [
                alive & filters.mask(conditions, segment.metadata, len(segment))
                for segment, alive in zip(self.segments, self.alive, strict=True)
            ]
            known = np.concatenate([np.zeros(0, bool), *masks])
            with self._lock:
                if len(self._masks) >= _KEPT:
                    self._masks.clear()
                self._masks[key] = known
        return known

    def find(
        self,
        questions: Sequence[str],
        vectors: np.ndarray | None,
        k: int,
        *,
        where: Where | None = None,
        weight: float | None = None,
    ) -> list[Found]:
        """The top k of each question. `weight`: of BM25 (None: as in the settings).

        `vectors` of the questions are not needed where the weight is 1.
        """
        allowed = self.allowed(where)
        count = int(np.count_nonzero(allowed))
        k = min(k, count)
        weight = self.settings.fusion.weight if weight is None else weight
        if weight == 1:
            return [Found(*self.by_words(question, k, allowed)[:2], None) for question in questions]
        assert vectors is not None
        if weight == 0:
            scores, rows = self.by_vectors(vectors, k, allowed)
            return [Found(r[r >= 0], s[r >= 0], None) for s, r in zip(scores, rows, strict=True)]
        first = min(self.settings.fusion.depth, count)
        near = self.by_vectors(vectors, max(k, first), allowed)
        lexical = (self.by_words(question, max(k, first), allowed) for question in questions)
        return [
            self._fused(vector, (gains, rows), words, k, first, weight)
            for vector, gains, rows, words in zip(vectors, *near, lexical, strict=True)
        ]

    def _fused(
        self,
        vector: np.ndarray,
        near: Nearest,
        lexical: tuple[np.ndarray, np.ndarray, np.ndarray],
        k: int,
        first: int,
        weight: float,
    ) -> Found:
        """As a hybrid index does it (`retrieval/hybrid.py`): every candidate of either ranking has
        both scores, and the first `first` of each ranking give the scale."""
        gains, mine = near[0][near[1] >= 0], near[1][near[1] >= 0]
        best, by_words, every = lexical
        there = np.zeros(len(every), bool)
        there[mine] = True
        alone = best[~there[best]]
        rows = np.concatenate([mine, alone])
        dense = np.concatenate([gains, self.vectors(alone) @ vector])
        order = np.argsort(rows)
        rows = rows[order]
        scores = np.stack([dense[order], every[rows]]).astype(np.float64)
        how = self.settings.fusion.normalization
        ranked = np.zeros(first, np.float32)  # 0: none of the query's words
        ranked[: len(by_words[:first])] = by_words[:first]
        lowest = fusion.COSINE if self.settings.cosine else None
        scales = (
            fusion.scale(gains[np.isfinite(gains)][:first], how, lowest),
            fusion.scale(ranked, how, fusion.BM25),
        )
        offsets, units = np.array(scales).T[..., None]
        fused = fusion.mixed((scores - offsets) / units, weight)
        top_rows = np.argsort(-fused, kind="stable")[:k]
        return Found(rows[top_rows], fused[top_rows], scores[:, top_rows])

    def by_words(
        self, question: str, k: int, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, scores) of the top k by BM25, and the scores of all rows."""
        every = self.words.scores(question)
        rows = np.flatnonzero((every > 0) & allowed)
        best = rows[top(every[rows], k)]
        return best, every[best], every

    def by_vectors(self, vectors: np.ndarray, k: int, allowed: np.ndarray) -> Nearest:
        """(scores, rows) [queries, k] of the top k by the product of vectors; row -1 for none."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        scores = [np.full((len(vectors), k), -np.inf, np.float32)]
        rows = [np.full((len(vectors), k), -1, np.int64)]
        for segment, start in zip(self.segments, self.starts.tolist(), strict=False):
            mask = allowed[start : start + len(segment)]
            gains, places = nearest(segment, vectors, k, mask)
            scores.insert(-1, gains)
            rows.insert(-1, np.where(places >= 0, places + start, -1))
        every, numbers = np.concatenate(scores, 1), np.concatenate(rows, 1)
        best = np.argsort(-every, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(every, best, 1), np.take_along_axis(numbers, best, 1)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """float32: the vectors of some rows."""
        found = np.empty((len(rows), self.settings.dimension), np.float32)
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owners).tolist():
            mine = owners == number
            found[mine] = self.segments[number].vectors[rows[mine] - self.starts[number]]
        return found

    def record(self, row: int) -> dict[str, Any]:
        """The passage of a row."""
        number = bisect.bisect_right(self._begins, row) - 1
        return self.segments[number].records[row - self._begins[number]]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of some rows."""
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        return [
            self.segments[owner].ids[row - int(self.starts[owner])]
            for owner, row in zip(owners.tolist(), rows, strict=True)
        ]

    def rows_of(self, names: Sequence[str]) -> np.ndarray:
        """int64: the row of each id, -1 where the index does not have it."""
        found = np.full(len(names), -1, np.int64)
        for segment, alive, start in zip(self.segments, self.alive, self.starts, strict=False):
            rows = segment.rows_of(names)
            there = (rows >= 0) & alive[rows]
            found[there] = rows[there] + start
        return found

    def hits(self, found: Found) -> list[Hit]:
        """With their texts."""
        hits = []
        for place, row in enumerate(found.rows.tolist()):
            record = self.record(row)
            parts: dict[str, float] = {}
            if found.parts is not None:
                parts = dict(zip((DENSE, BM25), found.parts[:, place].tolist(), strict=True))
            known = {"id": record.pop("_id"), "score": float(found.scores[place]), "scores": parts}
            title, text = record.pop("title", "") or "", record.pop("text", "") or ""
            hits.append(Hit(**known, title=title, text=text, metadata=record))
        return hits
