"""QExt: the span of a document that says most about it becomes its pseudo-query (AugTriever).

Of every document a few spans are drawn at random (16 of 4 to 16 words; Meng et al., 2022)
and ranked by a measure of salience, which is one callable: documents and their spans in, one score
a span out, higher is better.

    extraction_bm25.Bm25Salience        how the document's words answer the span as a query
    extraction_encoder.EncoderSalience  span · document under a dual encoder
    inference.likelihood.Likelihood     log-likelihood of the span under a T5 that read the document

The released code cannot extract anything (its loader never draws spans), so the paper rules.
Structure (titles, anchors) is read off the document by `structure`. All of it becomes contexts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.formats.records import Record, Records, write_lines
from qac_jax.queries import structure
from qac_jax.queries.contexts import belongs
from qac_jax.queries.extraction_bm25 import Bm25Salience, Statistics
from qac_jax.text import crops


# So many documents are scored together; the released likelihood pads over so many (a batch a GPU).
BLOCK = 128

SALIENCES = ("bm25", "plm", "self")
STRUCTURES = ("title", "anchor")
RANDOM = "random"  # spans as they are drawn: what salience must be better than
ORIGINS = {
    RANDOM: "spans",
    **{name: f"qext_{name}" for name in SALIENCES},
    **{name: f"doc_{name}" for name in STRUCTURES},
}


class Salience(Protocol):
    """How much each span says about its document; higher is better."""

    def __call__(
        self, documents: Sequence[str], spans: Sequence[Sequence[str]]
    ) -> list[np.ndarray]: ...


class DocumentSpans(NamedTuple):
    """A document as far as it is looked at, and spans of it (none where it is too short)."""

    text: str
    spans: list[str]


@dataclass(frozen=True)
class SpanSampling:
    """How spans are drawn: words are what white space divides."""

    spans: int = option(16, "spans that are drawn and ranked")
    shortest: int = option(4, "words of a span, at least")
    longest: int = option(16, "words of a span, at most")
    context_words: int = option(256, "words of a passage that are looked at")

    def __post_init__(self) -> None:
        if self.spans < 1 or not 1 <= self.shortest <= self.longest:
            raise UserError(
                f"spans={self.spans} of {self.shortest} to {self.longest} words cannot be drawn; "
                "expected at least one span, and bounds in order from 1 on"
            )
        if self.context_words < self.longest:
            raise UserError(
                f"context_words={self.context_words} is less than a span of longest="
                f"{self.longest} words; make it longer"
            )

    def candidates(self, name: str, text: str, seed: int = 0) -> DocumentSpans:
        """The spans of a document, from (seed, name) alone."""
        words = text.split()
        rng = np.random.default_rng(_number(seed, name))
        first, last = crops.window(len(words), self.context_words, rng)
        words = words[first:last]
        if len(words) < self.shortest:
            return DocumentSpans(" ".join(words), [])
        places = crops.chunks(
            len(words), rng, count=self.spans, shortest=self.shortest, longest=self.longest
        )
        return DocumentSpans(" ".join(words), [" ".join(words[a:b]) for a, b in places])


@dataclass(frozen=True)
class Extraction:
    """What is made of a passage."""

    method: str
    sampling: SpanSampling = SpanSampling()
    keep: int = 1  # spans of a passage: the best
    title: structure.TitleRule = structure.TitleRule()
    origin: str = ""
    part: str = "all"
    seed: int = 0

    def takes(self, passage: Record) -> bool:
        """Whether this passage belongs to the part of the corpus that is asked for."""
        return belongs(passage, self.part)

    def contexts(
        self, passages: Sequence[Record], salience: Salience | None
    ) -> Iterator[list[Record]]:
        """The contexts of each passage."""
        if self.method in STRUCTURES:
            for passage in passages:
                texts = (
                    [self.title.of(passage)]
                    if self.method == "title"
                    else structure.anchors(passage)
                )
                yield [self._context(text, None) for text in texts if text]
            return
        drawn = [self.sampling.candidates(p["_id"], p["text"], self.seed) for p in passages]
        if self.method == RANDOM:
            for document in drawn:
                some = list(dict.fromkeys(document.spans))[: self.keep]
                yield [self._context(text, None) for text in some]
            return
        assert salience is not None
        scores = salience([d.text for d in drawn], [d.spans for d in drawn])
        for document, of_spans in zip(drawn, scores, strict=True):
            ranked = best(document.spans, of_spans, self.keep)
            yield [self._context(text, score) for text, score in ranked]

    def _context(self, text: str, score: float | None) -> Record:
        return {"text": text, "origin": self.origin or ORIGINS[self.method], "score": score}


@dataclass(frozen=True)
class Job:
    """Passages `start` to `stop` of one output file; `given` are contexts that stay."""

    extraction: Extraction
    passages: Records
    given: Records | None
    start: int
    stop: int
    target: str
    statistics: str = ""  # the corpus's, for BM25
    k1: float = 1.2
    b: float = 0.75

    def salience(self) -> Salience | None:
        """What needs no model; what does is given to `write_shard`."""
        if self.extraction.method != "bm25":
            return None
        return Bm25Salience(Statistics.load(self.statistics), self.k1, self.b)


@dataclass(frozen=True)
class CountJob:
    """Passages whose words are counted."""

    passages: Records
    start: int
    stop: int
    target: str


def count_words(job: CountJob) -> dict[str, Any]:
    """Statistics of one part of the corpus, written to a file."""
    found = Statistics.of(p["text"] for p in job.passages.range(job.start, job.stop))
    found.save(job.target)
    return {"documents": found.documents}


def write_shard(
    job: Job,
    salience: Salience | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Writes one file of contexts; tells counts and the file's hash."""
    extraction = job.extraction
    salience = salience or job.salience()
    told = {"extracted": 0, "without": 0}

    def records() -> Iterator[Mapping[str, Any]]:
        for start in range(job.start, job.stop, BLOCK):
            block = list(job.passages.range(start, min(start + BLOCK, job.stop)))
            asked = [p for p in block if extraction.takes(p)]
            found = dict(
                zip((p["_id"] for p in asked), extraction.contexts(asked, salience), strict=True)
            )
            given = _given(job.given, [p["_id"] for p in block])
            for passage in block:
                own = found.get(passage["_id"], [])
                told["extracted"] += len(own)
                told["without"] += passage["_id"] in found and not own
                yield {"_id": passage["_id"], "contexts": [*given.get(passage["_id"], ()), *own]}
            report(len(block))

    return {**write_lines(job.target, records()), **told}


def best(spans: Sequence[str], scores: np.ndarray, keep: int) -> list[tuple[str, float]]:
    """The best so many different spans; among equals the one drawn first."""
    found: dict[str, float] = {}
    for place in np.argsort(-scores, kind="stable").tolist():
        if len(found) == keep:
            break
        if np.isfinite(scores[place]):
            found.setdefault(spans[place], round(float(scores[place]), 6))
    return list(found.items())


def _given(contexts: Records | None, names: Sequence[str]) -> dict[str, Sequence[Record]]:
    if contexts is None:
        return {}
    places = contexts.positions(names)
    return {
        name: contexts[place]["contexts"]
        for name, place in zip(names, places, strict=True)
        if place is not None
    }


def _number(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{name}\nspans".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
