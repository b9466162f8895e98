"""QExt: the most salient span of a document becomes its pseudo-query (AugTriever).

Of every document a few spans are drawn at random (16 of 4 to 16 words; Meng et al., 2022) and
ranked by salience: a callable of documents and their spans that scores each span.

    Bm25Salience                        BM25 of the document for the span as a query
    encoder_salience                    span · document under a dual encoder
    inference.likelihood.Likelihood     log-likelihood of the span given the document, under a T5

The released code cannot extract (its loader never draws spans), so this follows the paper.
`structure` gives titles, anchors and keywords instead. All of them become contexts.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import math
import os
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.formats.identities import id_hash
from qac_jax.formats.records import Record, Records, write_lines
from qac_jax.queries import structure
from qac_jax.text import crops


if TYPE_CHECKING:
    from qac_jax.inference.encoder import Encoder


# Documents scored in one call: the likelihood pads over this number (a batch of one GPU).
BLOCK = 128

RANDOM = "random"  # spans as drawn: the baseline of salience
# Of methods that draw spans, and of the others.
OF_SPANS = {"bm25": "qext_bm25", "plm": "qext_plm", "self": "qext_self", RANDOM: "spans"}
ORIGINS = {**OF_SPANS, "title": "doc_title", "anchor": "doc_anchor", "keywords": "keywords"}

# Of BM25: the share of the mean weight that a word in more than half of the documents gets.
_EPSILON = 0.25
_SPACED = str.maketrans(dict.fromkeys(string.punctuation, " "))

# Documents and the spans of each -> the salience of each span; the higher the better.
Salience = Callable[[Sequence[str], Sequence[Sequence[str]]], list[np.ndarray]]


@dataclass(frozen=True)
class SpanSampling(Checked):
    """How spans are drawn, in words separated by white space."""

    spans: int = option(16, "candidate spans drawn per passage", at_least=1, at_most=10_000)
    shortest: int = option(4, "minimum words of a span", at_least=1)
    longest: int = option(16, "maximum words of a span")
    context_words: int = option(256, "words of the random window that spans are drawn from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest <= self.longest <= self.context_words:
            raise UserError(
                f"shortest={self.shortest}, longest={self.longest} and context_words="
                f"{self.context_words} are words; expected them in ascending order"
            )

    def candidates(
        self, name: str, text: str, seed: int = 0, draw: int = 0
    ) -> tuple[str, list[str]]:
        """The window of a document that is used, and spans of it (none where it is too short), from
        (seed, name, draw) alone."""
        words = text.split()
        number = _number(seed, name)
        rng = np.random.default_rng([number, draw] if draw else number)
        first, last = crops.window(len(words), self.context_words, rng)
        words = words[first:last]
        if len(words) < self.shortest:
            return " ".join(words), []
        how = {"count": self.spans, "shortest": self.shortest, "longest": self.longest}
        places = crops.chunks(len(words), rng, **how)
        return " ".join(words), [" ".join(words[a:b]) for a, b in places]


@dataclass(frozen=True)
class Extraction:
    method: str
    sampling: SpanSampling = SpanSampling()
    keep: int = 1  # the top spans of a passage, of each draw
    draws: int = 1  # times that spans are drawn
    title: structure.TitleRule = structure.TitleRule()
    origin: str = ""
    seed: int = 0
    statistics: str = ""  # the file of the corpus statistics, for BM25

    def contexts(
        self, passages: Sequence[Record], salience: Salience | None
    ) -> Iterator[list[Record]]:
        if self.method in OF_SPANS:
            by_draw = [self._spans(passages, salience, draw) for draw in range(self.draws)]
            for of_passage in zip(*by_draw, strict=True):
                yield list(itertools.chain.from_iterable(of_passage))
            return
        for passage in passages:
            if self.method == "title":
                texts = [self.title.of(passage)]
            elif self.method == "anchor":
                texts = structure.anchors(passage)
            else:
                rng = np.random.default_rng([self.seed, _number(self.seed, passage["_id"])])
                texts = structure.keywords(passage, self.keep, rng)
            yield [self._context(text, None) for text in texts if text]

    def _spans(
        self, passages: Sequence[Record], salience: Salience | None, draw: int
    ) -> list[list[Record]]:
        """The spans kept of each passage, of one draw."""
        drawn = [self.sampling.candidates(p["_id"], p["text"], self.seed, draw) for p in passages]
        texts, spans = [text for text, _ in drawn], [of for _, of in drawn]
        if self.method == RANDOM:
            some = [list(dict.fromkeys(of))[: self.keep] for of in spans]
            return [[self._context(text, None) for text in of] for of in some]
        assert salience is not None
        ranked = map(functools.partial(best, keep=self.keep), spans, salience(texts, spans))
        return [[self._context(text, score) for text, score in of] for of in ranked]

    def _context(self, text: str, score: float | None) -> Record:
        return {"text": text, "origin": self.origin or ORIGINS[self.method], "score": score}


@dataclass(frozen=True)
class Job:
    """Passages `start` to `stop` of one output file; `earlier` are contexts to keep."""

    passages: Records
    start: int
    stop: int
    extraction: Extraction
    earlier: Records | None = None


def count_words(job: Job, path: str) -> dict[str, Any]:
    """Statistics of one part of the corpus, written to a file."""
    Statistics.of(p["text"] for p in job.passages.range(job.start, job.stop)).save(path)
    return {}


def write_shard(
    job: Job,
    path: str,
    salience: Salience | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Writes one file of contexts; returns counts and the file's hash."""
    extraction = job.extraction
    if extraction.method == "bm25":
        statistics = Statistics.load(extraction.statistics)
        salience = Bm25Salience(statistics)
    counts = {"extracted": 0, "without": 0}

    def records() -> Iterator[Mapping[str, Any]]:
        for start in range(job.start, job.stop, BLOCK):
            block = list(job.passages.range(start, min(start + BLOCK, job.stop)))
            names, earlier = [p["_id"] for p in block], job.earlier
            places = earlier.positions(names) if earlier is not None else [None] * len(block)
            made = extraction.contexts(block, salience)
            for name, own, place in zip(names, made, places, strict=True):
                counts["extracted"] += len(own)
                counts["without"] += not own
                kept = [] if earlier is None or place is None else earlier[place]["contexts"]
                yield {"_id": name, "contexts": [*kept, *own]}
            report(len(block))

    return {**write_lines(path, records()), **counts}


def best(spans: Sequence[str], scores: np.ndarray, keep: int) -> list[tuple[str, float]]:
    """The top `keep` different spans; of equal scores the one drawn first."""
    ranked: dict[str, float] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(ranked) == keep:
            break
        if np.isfinite(scores[place]):
            ranked.setdefault(spans[place], round(float(scores[place]), 6))
    return list(ranked.items())


def _number(seed: int, name: str) -> int:
    return id_hash(f"{seed}\n{name}\nspans")


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
        self.documents += other.documents
        self.words += other.words
        self.frequency.update(other.frequency)

    def save(self, path: str | os.PathLike[str]) -> None:
        record = {**vars(self), "frequency": dict(sorted(self.frequency.items()))}
        with open(path, "w", encoding="utf-8") as file:
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
    """The span is a query, scored against its document with corpus statistics.

    Okapi BM25 as the released code takes it from rank_bm25: a word in more than half of the
    documents gets a quarter of the mean inverse document frequency instead of a negative one; a
    span's repeated words count each time. Lengths are in words, where the released code divides a
    length in characters by a mean length in words.
    """

    def __init__(self, statistics: Statistics, k1: float = 1.2, b: float = 0.75):
        if not statistics.words:
            raise UserError("no text of the corpus contains a word; give passages with text")
        self._weights = statistics.weights()
        self._mean = statistics.words / statistics.documents
        self._k1, self._b = k1, b

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        found = []
        for document, of in zip(documents, spans, strict=True):
            tokens = words(document)
            length = self._k1 * (1 - self._b + self._b * len(tokens) / self._mean)
            # The contribution of each word to the score of a span.
            gains = {
                word: self._weights.get(word, 0.0) * count * (self._k1 + 1) / (count + length)
                for word, count in collections.Counter(tokens).items()
            }
            each = [sum(gains.get(word, 0.0) for word in words(span)) for span in of]
            found.append(np.array(each, np.float64))
        return found


def encoder_salience(
    encoder: Encoder, documents: Sequence[str], spans: Sequence[Sequence[str]]
) -> list[np.ndarray]:
    whole = encoder.encode(documents, "passage")
    flat = encoder.encode([span for of in spans for span in of], "query")
    parts = np.split(flat, np.cumsum([len(of) for of in spans])[:-1])
    return [part @ vector for part, vector in zip(parts, whole, strict=True)]
