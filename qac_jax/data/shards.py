"""One shard of examples: the job that `tokenize` runs in every process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qac_jax.data import store
from qac_jax.data.encoding import Building, Document, DocumentBuilder
from qac_jax.data.judged import Judged
from qac_jax.formats.queries import with_score
from qac_jax.formats.records import Records
from qac_jax.text import tokenizers
from qac_jax.text.titles import text_of


Record = Mapping[str, Any]

# So many passages, or queries with their passages, are tokenised together.
_PASSAGES, _QUERIES = 512, 64


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


@dataclass(frozen=True)
class PairJob:
    """Some pairs of a generator: records {"before", "text", "after", "targets"}."""

    pairs: Records
    start: int
    stop: int
    building: Building
    schema: Mapping[str, str]
    target: str


def write_documents(job: DocumentJob) -> dict[str, Any]:
    """Writes one shard; tells counts, as JSON."""
    builder = DocumentBuilder(job.building)
    sizes: list[int] = []

    def records() -> Iterator[Record]:
        for together in _grouped(job):
            for found in builder.records(together):
                yield from found
                if found:
                    sizes.append(len(found))

    count = store.write_shard(job.target, job.schema, records())
    with open(job.sizes, "wb") as file:
        np.save(file, np.array(sizes, np.int64))
    return {"records": count, "left_out": builder.left_out}


def _grouped(job: DocumentJob) -> Iterator[list[Document]]:
    """Documents with so many passages together that tokenising them in one call pays."""
    contexts = _ContextReader(job)
    group: list[Document] = []
    waiting = 0
    for first, passages in documents(job.passages, job.start, job.stop):
        document = _part(Document(passages, contexts.of(first, len(passages))), job.building)
        if not document.passages:
            continue
        group.append(document)
        waiting += len(document.passages)
        if waiting >= _PASSAGES:
            yield group
            group, waiting = [], 0
    if group:
        yield group


def _part(document: Document, building: Building) -> Document:
    """The passages of a document that are asked for, with their contexts."""
    if building.part == "all":
        return document
    taken = [i for i, passage in enumerate(document.passages) if building.takes(passage)]
    return Document([document.passages[i] for i in taken], [document.contexts[i] for i in taken])


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
    for judged, query in _queries(job, encoder, left_out):
        record: dict[str, Any] = {
            "query": query,
            "positives": encoder.ids(judged.positives),
            "negatives": encoder.ids(judged.negatives),
        }
        if job.building.teacher:
            record["positives_scores"] = judged.positives_scores
            record["negatives_scores"] = judged.negatives_scores
        yield record


def _pairs(job: RankingJob, left_out: dict[str, int]) -> Iterator[Record]:
    encoder = _PassageEncoder(job)
    tokenizer, building = tokenizers.load(job.building.tokenizer), job.building
    for judged, query in _queries(job, encoder, left_out):
        for label, passages, scores in (
            (1, judged.positives, judged.positives_scores),
            (0, judged.negatives, judged.negatives_scores),
        ):
            asked: Sequence[Sequence[int]] = [query] * len(passages)
            if building.scores:
                text = building.query_prompt + judged.query
                asked = tokenizer.encode_batch([with_score(text, share) for share in scores])
            for ids, passage in zip(asked, encoder.ids(passages), strict=True):
                yield {"query": ids, "passage": passage, "label": [label]}


def _queries(
    job: RankingJob, encoder: _PassageEncoder, left_out: dict[str, int]
) -> Iterator[tuple[Judged, Sequence[int]]]:
    """The queries with their ids, once their passages are known to the encoder."""
    tokenizer, prompt = tokenizers.load(job.building.tokenizer), job.building.query_prompt
    for start in range(0, len(job.queries), _QUERIES):
        together = job.queries[start : start + _QUERIES]
        if job.building.task == "cross_encoder":
            together = tuple(_fewer(judged, job) for judged in together)
        encoder.learn(judged.positives for judged in together)
        encoder.learn(judged.negatives for judged in together)
        for judged, ids in zip(
            together, tokenizer.encode_batch([prompt + j.query for j in together]), strict=True
        ):
            if ids:
                yield judged, ids
            else:
                left_out["queries without tokens"] = left_out.get("queries without tokens", 0) + 1


def _fewer(judged: Judged, job: RankingJob) -> Judged:
    """With as many negatives as a cross-encoder sees of a query."""
    rng = random.Random(f"{job.building.seed} {judged.query}")
    wanted = min(job.negatives_per_query, len(judged.negatives))
    places = rng.sample(range(len(judged.negatives)), wanted)
    negatives = [judged.negatives[i] for i in places]
    if not len(judged.negatives_scores):
        return dataclasses.replace(judged, negatives=negatives)
    scores = [float(judged.negatives_scores[i]) for i in places]
    return dataclasses.replace(judged, negatives=negatives, negatives_scores=scores)


def write_pairs(job: PairJob) -> dict[str, Any]:
    """Writes one shard of a generator's pairs; tells counts, as JSON."""
    left_out: dict[str, int] = {}
    count = store.write_shard(job.target, job.schema, _readings(job, left_out))
    return {"records": count, "left_out": left_out}


def _readings(job: PairJob, left_out: dict[str, int]) -> Iterator[Record]:
    """What is read (the text is cut, the words behind it stay), and what is said."""
    tokenizer = tokenizers.load(job.building.tokenizer)
    for start in range(job.start, job.stop, _PASSAGES):
        records = list(job.pairs.range(start, min(start + _PASSAGES, job.stop)))
        before, text, after = (
            tokenizer.encode_batch([record[part] for record in records])
            for part in ("before", "text", "after")
        )
        said = iter(tokenizer.encode_batch([t for record in records for t in record["targets"]]))
        for number, record in enumerate(records):
            targets = [ids for ids in (next(said) for _ in record["targets"]) if ids]
            room = job.building.input_tokens or len(text[number])
            room = max(0, room - len(before[number]) - len(after[number]))
            inputs = [*before[number], *text[number][:room], *after[number]]
            if inputs and targets:
                yield {"inputs": inputs, "targets": targets}
            else:
                left_out["pairs without tokens"] = left_out.get("pairs without tokens", 0) + 1


class _PassageEncoder:
    """Ids of passages: each is read and tokenised once a shard, since negatives repeat."""

    def __init__(self, job: RankingJob):
        self._job = job
        self._tokenizer = tokenizers.load(job.building.tokenizer)
        self._known: dict[Any, np.ndarray] = {}

    def learn(self, lists: Iterable[Sequence[Any] | np.ndarray]) -> None:
        """Reads and tokenises those that are new."""
        new = dict.fromkeys(p for passages in lists for p in passages)
        names = [passage for passage in new if passage not in self._known]
        prompt, title = self._job.building.passage_prompt, self._job.building.title
        texts = [prompt + text_of(self._tokenizer, self._record(p), title) for p in names]
        for passage, ids in zip(names, self._tokenizer.encode_batch(texts), strict=True):
            self._known[passage] = np.array(ids, np.int32)

    def ids(self, passages: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
        """The ids of passages that were learned."""
        return [self._known[passage] for passage in passages]

    def _record(self, passage: Any) -> Record:
        if not isinstance(passage, np.integer):
            return {"title": passage.title, "text": passage.text}
        assert self._job.passages is not None, "numbers of passages come with the passages"
        return self._job.passages[int(passage)]
