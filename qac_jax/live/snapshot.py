"""One version of a living index, opened: it stays as it is, whatever happens to the folder.

BM25's scores are computed from the statistics of all passages that are not deleted: they equal
those of a fresh BM25 index of these passages in the same order, bit for bit.
"""

import functools
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from qac_jax.errors import UserError, shown
from qac_jax.errors import nearest as nearest_name
from qac_jax.hub.names import is_minilm
from qac_jax.live import filters
from qac_jax.live.filters import Condition, Where
from qac_jax.live.store import LENGTH, LiveSettings, Record, Store, Version
from qac_jax.retrieval import fusion
from qac_jax.retrieval.bm25 import WORD, information, top
from qac_jax.retrieval.corpus import Hit, Hits
from qac_jax.retrieval.hybrid import BM25, DENSE


# Rows whose scores are in memory at a time, and passages that are read together.
_BLOCK, TOGETHER = 1 << 16, 1 << 14
# Filters whose rows are kept between queries, and words whose scores are.
_KEPT, _KEPT_WORDS = 16, 1024

# By a logistic of the first hit: MiniLM's cosine, and BM25's share of what the question's words say
# (docs/results/search.md). Below UNLIKELY a search says that nothing seems to answer.
_OFFSET, _OF_COSINE, _OF_SHARE, UNLIKELY = -9.7, 18.5, 16.2, 0.1

Nearest = tuple[np.ndarray, np.ndarray]  # scores float32, rows int64 [queries, k]


class Found(NamedTuple):
    """The ranking of one question, best first."""

    rows: np.ndarray
    scores: np.ndarray
    parts: np.ndarray | None  # [2, rows]: the scores of vectors and of BM25, where both are fused
    likely: float | None = None  # that there is an answer


class Snapshot:
    """Rows are numbered in the order in which passages were added."""

    def __init__(self, store: Store, version: Version, settings: LiveSettings):
        self.store, self.state, self.settings = store, version, settings
        self.version, self.rows = version.number, version.rows
        self._vectors = store.vectors(version.rows)
        self.alive = np.ones(version.rows, bool)
        query = "SELECT row FROM passages WHERE deleted <= ? AND row < ?"
        self.alive[self._rows(query, self.version, self.rows)] = False
        self.analyzer = settings.analyzer()
        self._masks: dict[tuple[Condition, ...], np.ndarray] = {}
        self._words: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return self.state.count

    def gone(self) -> str:
        """A hash of which rows are deleted."""
        return hashlib.sha256(np.packbits(self.alive).tobytes()).hexdigest()

    def _rows(self, query: str, *values: object) -> np.ndarray:
        return np.array([row for (row,) in self.store.read(query, *values)], np.int64)

    def allowed(self, where: Where | None = None) -> np.ndarray:
        """bool [rows]: those that are not deleted and fit a filter."""
        conditions = filters.parsed(where)
        known = self._masks.get(conditions)
        if known is None:
            known = self.alive.copy()
            for condition in conditions if self.rows else ():
                fits = np.zeros(self.rows, bool)
                for query, values in condition.queries:
                    query = f"SELECT row FROM fields WHERE {query} AND row < ?"
                    fits[self._rows(query, *values, self.rows)] = True
                if not condition.optional and not fits.any():
                    self._check_known(condition)
                known &= ~fits if condition.others else fits
            if len(self._masks) >= _KEPT:
                self._masks.clear()
            self._masks[conditions] = known
        return known

    @functools.cached_property
    def fields(self) -> list[str]:
        """The first thousand names of metadata."""
        # By the next name in the index: DISTINCT would read all values.
        after = "SELECT min(field) FROM fields WHERE field > name"
        found = self.store.read(
            f"WITH names(name) AS (SELECT min(field) FROM fields UNION ALL SELECT ({after}) FROM "
            "names WHERE name IS NOT NULL) SELECT name FROM names WHERE name IS NOT NULL LIMIT 1000"
        )
        return [name for (name,) in found]

    def _check_known(self, condition: Condition) -> None:
        """Refuses a field that no passage has, and one whose values are all of other types."""
        field = condition.field
        found = self.store.read("SELECT kind, value FROM fields WHERE field = ? LIMIT 1", field)
        if not found:
            within = [name for name in self.fields if name.endswith(f".{field}")]
            known = nearest_name(field, within or self.fields)
            raise UserError(f"where: no passage has the field {shown(field)}; {known}")
        number = f"?2 = 'number' AND {filters.NUMERAL}"
        of_type = f"SELECT 1 FROM fields WHERE field = ?1 AND (kind = ?2 OR {number}) LIMIT 1"
        asked = {str(kind) for _, (_, kind, *_) in condition.queries}
        refused = asked and not condition.others
        if refused and not any(self.store.read(of_type, field, kind) for kind in asked):
            ((kind, value),) = found
            example = json.dumps(bool(value) if kind == "truth" else value, ensure_ascii=False)
            words = " or ".join(sorted(asked)).replace("truth", "true or false")
            raise UserError(
                f"where: the field {shown(field)} has no {words}; give such as {example}"
            )

    def find(
        self,
        questions: Sequence[str],
        vectors: np.ndarray | None,
        k: int,
        *,
        where: Where | None = None,
        weight: float | None = None,
    ) -> list[Found]:
        """The top k of each question. `weight`: of BM25 (None: as in the settings); where it is 1,
        `vectors` of the questions are not needed."""
        allowed = self.allowed(where)
        count = int(np.count_nonzero(allowed))
        k = min(k, count)
        weight = self.settings.fusion.weight if weight is None else weight
        if weight == 1:
            ranked = (self._by_words(question, k, allowed) for question in questions)
            return [Found(rows, scores, None) for rows, scores, _ in ranked]
        assert vectors is not None
        if weight == 0:
            both = self._by_vectors(vectors, k, allowed)
            return [Found(rows, scores, None) for scores, rows in zip(*both, strict=True)]
        first = min(self.settings.fusion.depth, count)
        near = self._by_vectors(vectors, max(k, first), allowed)
        lexical = (self._by_words(question, max(k, first), allowed) for question in questions)
        return [
            self._fused(question, vector, gains, rows, words, k, first, weight)
            for question, vector, gains, rows, words in zip(
                questions, vectors, *near, lexical, strict=True
            )
        ]

    def _fused(
        self,
        question: str,
        vector: np.ndarray,
        gains: np.ndarray,
        mine: np.ndarray,
        lexical: tuple[np.ndarray, ...],
        k: int,
        first: int,
        weight: float,
    ) -> Found:
        """As a hybrid index does it (`retrieval/hybrid.py`): every candidate of either ranking has
        both scores, and the first `first` of each ranking give the scale."""
        best, by_words, every = lexical
        alone = np.setdiff1d(best, mine)
        rows = np.concatenate([mine, alone])
        order = np.argsort(rows)
        dense = np.concatenate([gains, self._vectors[alone] @ vector])[order]
        rows = rows[order]
        scores = np.stack([dense, every[rows]]).astype(np.float64)
        how = self.settings.fusion.normalization
        ranked = np.zeros(first, np.float32)  # 0: none of the query's words
        ranked[: len(by_words[:first])] = by_words[:first]
        lowest = fusion.COSINE if self.settings.cosine else None
        lexical_scale = fusion.scale(ranked, how, fusion.BM25)
        if how == fusion.INFORMATION:
            counts = [len(self._gains(word)[0]) for word in self.analyzer.words(question)]
            lexical_scale = 0.0, information(counts, len(self))
        scales = fusion.scale(gains[:first], how, lowest), lexical_scale
        offsets, units = np.array(scales).T[..., None]
        fused = fusion.mixed((scores - offsets) / units, weight)
        top_rows = np.argsort(-fused, kind="stable")[:k]
        likely = None
        if how == fusion.INFORMATION and is_minilm(self.settings.encoder["path"]):
            cosine, words = scores[:, top_rows[0]].tolist() if len(top_rows) else (0.0, 0.0)
            gain = _OFFSET + _OF_COSINE * cosine + _OF_SHARE * words / lexical_scale[1]
            likely = 1 / (1 + math.exp(-gain))
        return Found(rows[top_rows], fused[top_rows], scores[:, top_rows], likely)

    def _by_vectors(self, vectors: np.ndarray, k: int, allowed: np.ndarray) -> Nearest:
        """The top k allowed rows for each query; of equal scores the earlier row wins."""
        queries = np.ascontiguousarray(vectors, np.float32)
        best = np.zeros((len(queries), 0), np.float32)
        places = np.zeros((len(queries), 0), np.int64)
        for start in range(0, self.rows, _BLOCK):
            block = self._vectors[start : start + _BLOCK]
            chosen = np.flatnonzero(allowed[start : start + _BLOCK])
            if len(chosen) < len(block):  # else nothing is copied
                block = block[chosen]
            rows = np.broadcast_to(start + chosen, (len(queries), len(chosen)))
            best, places = np.hstack([best, queries @ block.T]), np.hstack([places, rows])
            first = np.stack([top(scores, k) for scores in best])
            best = np.take_along_axis(best, first, 1)
            places = np.take_along_axis(places, first, 1)
        return best, places

    def _by_words(
        self, question: str, k: int, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, scores) of the top k by BM25, and the scores of all rows."""
        every = self.bm25(question)
        rows = np.flatnonzero((every > 0) & allowed)
        best = rows[top(every[rows], k)]
        return best, every[best], every

    def bm25(self, question: str) -> np.ndarray:
        """float32 [rows]: 0 where a passage has none of the words, or is deleted."""
        total = np.zeros(self.rows, np.float32)
        for word in self.analyzer.words(question):
            rows, gains = self._gains(word)
            np.add.at(total, rows, gains)
        return total

    def weights(self) -> Iterator[dict[int, float]]:
        """Of each passage that is not deleted BM25's scores, by the CRC-32 of their words."""
        none = np.zeros(0, np.int64)
        parts = [(np.zeros(0, np.float32), none, none)]  # texts may lack words
        for (word,) in self.store.read("SELECT DISTINCT word FROM words WHERE word != ?", LENGTH):
            rows, gains = self._scored(*self._counts(word))
            parts.append((gains, rows, np.full(len(rows), zlib.crc32(word.encode()))))
        gains, rows, numbers = map(np.concatenate, zip(*parts, strict=True))
        every = csr_array((gains, (rows, numbers)), shape=(self.rows, 1 << 32))
        for row in np.flatnonzero(self.alive):
            mine = slice(*every.indptr[row : row + 2])
            yield dict(zip(every.indices[mine].tolist(), every.data[mine].tolist(), strict=True))

    def by_word(self, question: str, row: int) -> list[tuple[str, float]]:
        """BM25's score of a row, word by word: (the question's word, what it gives)."""
        said: dict[str, str] = {}  # words as they stand in the question, of the index's words
        found: dict[str, float] = {}
        for asked in WORD.findall(question.lower()):
            for word in self.analyzer.words(asked):
                rows, gains = self._gains(word)
                if len(here := np.flatnonzero(rows == row)):
                    shown = said.setdefault(word, asked)
                    found[shown] = found.get(shown, 0.0) + float(gains[here[0]])
        return sorted(found.items(), key=lambda pair: -pair[1])

    def _gains(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have a word and are not deleted, and BM25's score of it in each."""
        known = self._words.get(word)
        if known is None:
            known = self._scored(*self._counts(word))
            if len(self._words) >= _KEPT_WORDS:
                self._words.clear()
            self._words[word] = known
        return known

    def _counts(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        query = "SELECT counts FROM words WHERE word = ? ORDER BY bucket"
        stored = b"".join(counts for (counts,) in self.store.read(query, word))
        rows, counts = np.frombuffer(stored, np.int32).reshape(-1, 2).T
        kept = rows < self.rows
        kept[kept] = self.alive[rows[kept]]
        return rows[kept].astype(np.int64), counts[kept]

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """int32 [rows]: the words of each passage, 0 of deleted ones."""
        lengths = np.zeros(self.rows, np.int32)
        rows, counts = self._counts(LENGTH)
        lengths[rows] = counts
        return lengths

    def _scored(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not len(rows):
            return rows, np.zeros(0, np.float32)
        from bm25s import scoring  # slow to import

        how = self.settings.scoring
        mean = np.float64(self._lengths.sum(dtype=np.int64)) / len(self)
        rarity = np.float32(scoring._select_idf_scorer(how.variant)(len(rows), len(self)))
        weights = scoring._select_tfc_scorer(how.variant)(
            counts.astype(np.float32), self._lengths[rows], mean, how.k1, how.b, None
        )
        return rows, (rarity * weights).astype(np.float32)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """float32: the vectors of some rows."""
        return self._vectors[rows]

    def passages(self) -> Iterator[tuple[list[Record], np.ndarray]]:
        """All that are not deleted, with their vectors."""
        kept = np.flatnonzero(self.alive)
        for start in range(0, len(kept), TOGETHER):
            rows = kept[start : start + TOGETHER]
            yield self.records(rows.tolist()), self._vectors[rows]

    def records(self, rows: Sequence[int]) -> list[Record]:
        """The passages of some rows."""
        return [json.loads(line) for line in self._stored("record", rows)]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of some rows."""
        return self._stored("id", rows)

    def _stored(self, column: str, rows: Sequence[int]) -> list[str]:
        listed = ", ".join(map(str, rows))
        query = f"SELECT row, {column} FROM passages WHERE row IN ({listed})"
        found = dict(self.store.read(query))
        return [found[row] for row in rows]

    def having(self, columns: str, field: str, *value: str) -> list[tuple[str, str]]:
        """Columns of the passages that have a field, or whose field is a text."""
        query = (
            f"SELECT {columns} FROM fields JOIN passages USING (row) WHERE field = ? AND row < ? "
            f"AND (deleted IS NULL OR deleted > ?) AND kind = 'text' {'AND value = ?' * len(value)}"
        )
        return self.store.read(query, field, self.rows, self.version, *value)

    def rows_of(self, names: Sequence[str]) -> np.ndarray:
        """int64: the row of each id, -1 where the index does not have it."""
        query = (
            "SELECT coalesce(max(row), -1) FROM passages "
            "WHERE id = ? AND row < ? AND (deleted IS NULL OR deleted > ?)"
        )
        found = [self.store.read(query, name, self.rows, self.version)[0][0] for name in names]
        return np.array(found, np.int64)

    def hits(self, found: Found, page: slice = slice(None)) -> Hits:
        """With their texts."""
        hits = Hits()
        hits.likely = found.likely
        both = [] if found.parts is None else found.parts.T[page].tolist()
        scores = found.scores[page].tolist()
        for place, record in enumerate(self.records(found.rows[page].tolist())):
            parts = dict(zip((DENSE, BM25), both[place], strict=True)) if both else {}
            name, title, text = (record.pop(key, "") or "" for key in ("_id", "title", "text"))
            hits.append(Hit(name, scores[place], title, text, parts, record))
        return hits
