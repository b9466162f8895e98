"""Salience by BM25: the span is a query, scored against its document with corpus statistics.

Okapi BM25 as the released code takes it from rank_bm25 : k1 1.2, b 0.75;
a word in more than half of the documents gets a quarter of the mean inverse document frequency
instead of a negative one; a span's repeated words count each time. Lengths are in words, where the
released code divides a length in characters by a mean length in words.
"""

from __future__ import annotations

import collections
import json
import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qac_jax.errors import UserError


_EPSILON = 0.25
_SPACED = str.maketrans(dict.fromkeys(string.punctuation, " "))


def words(text: str) -> list[str]:
    """Lower-cased words; punctuation counts as space."""
    return text.lower().translate(_SPACED).split()


@dataclass
class Statistics:
    """The numbers of documents and words, and each word's document frequency."""

    documents: int = 0
    words: int = 0
    frequency: collections.Counter[str] = field(default_factory=collections.Counter)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Statistics:
        statistics = cls()
        for text in texts:
            tokens = words(text)
            statistics.documents += 1
            statistics.words += len(tokens)
            statistics.frequency.update(set(tokens))
        return statistics

    def add(self, other: Statistics) -> None:
        """Adds the statistics of another part of the corpus."""
        self.documents += other.documents
        self.words += other.words
        self.frequency.update(other.frequency)

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            record = {
                "documents": self.documents,
                "words": self.words,
                "frequency": dict(sorted(self.frequency.items())),
            }
            json.dump(record, file, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        return cls(record["documents"], record["words"], collections.Counter(record["frequency"]))

    def weights(self) -> dict[str, float]:
        """The inverse document frequency of every word."""
        raw = {
            word: math.log(self.documents - count + 0.5) - math.log(count + 0.5)
            for word, count in self.frequency.items()
        }
        least = _EPSILON * sum(raw.values()) / max(len(raw), 1)
        return {word: weight if weight >= 0 else least for word, weight in raw.items()}


class Bm25Salience:
    """Scores spans of documents of a corpus."""

    def __init__(self, statistics: Statistics, k1: float = 1.2, b: float = 0.75):
        if k1 < 0 or not 0 <= b <= 1:
            raise UserError(f"k1={k1}, b={b}; expected k1 from 0 on and b from 0 to 1")
        if not statistics.words:
            raise UserError("no text of the corpus contains a word; give passages with text")
        self._weights = statistics.weights()
        self._mean = statistics.words / statistics.documents
        self._k1, self._b = k1, b

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        return [
            np.array([self._score(gains, span) for span in of], np.float64)
            for gains, of in zip(map(self._gains, documents), spans, strict=True)
        ]

    def _gains(self, document: str) -> dict[str, float]:
        """The contribution of each word to the score of a span."""
        tokens = words(document)
        weights, k1 = self._weights, self._k1
        length = k1 * (1 - self._b + self._b * len(tokens) / self._mean)
        counts = collections.Counter(tokens)
        return {
            word: weights.get(word, 0.0) * count * (k1 + 1) / (count + length)
            for word, count in counts.items()
        }

    @staticmethod
    def _score(gains: Mapping[str, float], span: str) -> float:
        return sum(gains.get(word, 0.0) for word in words(span))
