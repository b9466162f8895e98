"""One shard of examples: the job that `tokenize` runs in every process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qac_jax.data import store
from qac_jax.data.building import Building, DocumentBuilder, text_of
from qac_jax.data.judged import Judged
from qac_jax.text import tokenizers
from qac_jax.text.records import Records


Record = Mapping[str, Any]

# Documents are tokenised together until they have so many passages.
_TOGETHER = 512


@dataclass(frozen=True)
class DocumentJob:
    """Passages `start` to `stop`, except those of a document that began before, and with the rest
    of the one that begins last; `places` says where each passage's contexts are (-1: nowhere).
    """

    passages: Records
    contexts: Records | None
    places: str  # a .npy file; "": the same place
    start: int
    stop: int
    building: Building
    schema: Mapping[str, str]
    target: str
    sizes: str  # .npy: how many examples came of each document


@dataclass(frozen=True)
class RankingJob:
    """Some judged queries."""

    passages: Records | None
    queries: tuple[Judged, ...]
    building: Building
    schema: Mapping[str, str]
    target: str
    negatives_per_query: int


def write_documents(job: DocumentJob) -> dict[str, Any]:
    """Writes one shard; tells counts, as JSON."""
    builder = DocumentBuilder(job.building)
    sizes: list[int] = []

    def records() -> Iterator[Record]:
        contexts = _ContextReader(job)
        for first, passages in documents(job.passages, job.start, job.stop):
            count = 0
            for record in builder.records(passages, contexts.of(first, len(passages))):
                count += 1
                yield record
            if count:
                sizes.append(count)

    count = store.write_shard(job.target, job.schema, records())
    with open(job.sizes, "wb") as file:
        np.save(file, np.array(sizes, np.int64))
    return {"records": count, "left_out": builder.left_out}


def documents(passages: Records, start: int, stop: int) -> Iterator[tuple[int, list[Record]]]:
    """(number of the first passage, all passages) of each document that begins in the range."""
    before = passages[start - 1]["doc"] if start else None
    group: list[Record] = []
    first = start
    for number, record in enumerate(passages.range(start, len(passages)), start):
        if before is not None and record["doc"] == before:
            first = number + 1
            continue  # it belongs to the shard before
        before = None
        if group and group[0]["doc"] != record["doc"]:
            yield first, group
            group, first = [], number
            if number >= stop:
                return
        elif not group:
            if number >= stop:
                return
            first = number
        group.append(record)
    if group:
        yield first, group


class _ContextReader:
    """The contexts of consecutive passages."""

    def __init__(self, job: DocumentJob):
        self._contexts = job.contexts
        self._places = np.load(job.places, mmap_mode="r") if job.places else None

    def of(self, first: int, count: int) -> list[Sequence[Record]]:
        if self._contexts is None:
            return [()] * count
        if self._places is None:
            return [r["contexts"] for r in self._contexts.range(first, first + count)]
        places = self._places[first : first + count].tolist()
        return [self._contexts[place]["contexts"] if place >= 0 else () for place in places]


def write_ranking(job: RankingJob) -> dict[str, Any]:
    """Writes one shard of judged queries; tells counts, as JSON."""
    left_out: dict[str, int] = {}
    build = _pairs if job.building.task == "cross_encoder" else _groups
    count = store.write_shard(job.target, job.schema, build(job, left_out))
    return {"records": count, "left_out": left_out}


def _groups(job: RankingJob, left_out: dict[str, int]) -> Iterator[Record]:
    encoder = _PassageEncoder(job)
    for judged, query in _queries(job, left_out):
        record: dict[str, Any] = {
            "query": query,
            "positives": [encoder(p) for p in judged.positives],
            "negatives": [encoder(p) for p in judged.negatives],
        }
        if job.building.teacher:
            record["positives_scores"] = judged.positives_scores
            record["negatives_scores"] = judged.negatives_scores
        yield record


def _pairs(job: RankingJob, left_out: dict[str, int]) -> Iterator[Record]:
    encoder = _PassageEncoder(job)
    for judged, query in _queries(job, left_out):
        rng = random.Random(f"{job.building.seed} {judged.query}")
        wanted = min(job.negatives_per_query, len(judged.negatives))
        negatives = rng.sample(judged.negatives, wanted)
        for label, passages in ((1, judged.positives), (0, negatives)):
            for passage in passages:
                yield {"query": query, "passage": encoder(passage), "label": [label]}


def _queries(job: RankingJob, left_out: dict[str, int]) -> Iterator[tuple[Judged, Sequence[int]]]:
    tokenizer = tokenizers.load(job.building.tokenizer)
    for start in range(0, len(job.queries), _TOGETHER):
        together = job.queries[start : start + _TOGETHER]
        for judged, ids in zip(
            together, tokenizer.encode_batch([j.query for j in together]), strict=True
        ):
            if ids and judged.positives:
                yield judged, ids
            else:
                what = "queries without tokens" if judged.positives else "queries without positives"
                left_out[what] = left_out.get(what, 0) + 1


class _PassageEncoder:
    """Ids of a passage: each is read and tokenised once a shard, since negatives repeat."""

    def __init__(self, job: RankingJob):
        self._job = job
        self._tokenizer = tokenizers.load(job.building.tokenizer)
        self._known: dict[Any, np.ndarray] = {}

    def __call__(self, passage: Any) -> np.ndarray:
        found = self._known.get(passage)
        if found is None:
            if isinstance(passage, int):
                assert self._job.passages is not None
                record: Record = self._job.passages[passage]
            else:
                record = {"title": passage.title, "text": passage.text}
            text = text_of(self._tokenizer, record, self._job.building.title)
            found = np.array(self._tokenizer.encode(text), np.int32)
            self._known[passage] = found
        return found
