"""One shard of examples: the jobs that `tokenize` runs in worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qac_jax.artifacts import arrays
from qac_jax.data import store
from qac_jax.data.building import Building, PassageSelection, Record
from qac_jax.data.encoding import DocumentContexts, DocumentTexts, JudgedTexts
from qac_jax.data.judged import Judged
from qac_jax.data.kind import DocumentKind, JudgedKind
from qac_jax.errors import UserError
from qac_jax.formats.records import Records


# Passages or pairs that are tokenised in one call.
_TOGETHER = 512


@dataclass(frozen=True, kw_only=True)
class ExamplesJob:
    """Writes one file of records of a kind."""

    sized: ClassVar[bool] = False  # whether the sizes of documents are stored

    kind: Any
    building: Building
    schema: Mapping[str, str]
    target: str = ""
    sizes: str = ""  # .npy: the number of examples of each document

    def records(self) -> tuple[Iterator[Record], Mapping[str, int]]:
        """The records, and what is left out (complete when all records are made)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DocumentJob(ExamplesJob):
    """The documents that begin in passages `start` to `stop`.

    `places`: the position of each passage's contexts (-1: it has none).
    """

    sized: ClassVar[bool] = True

    kind: DocumentKind
    passages: Records
    contexts: Records | None
    places: str  # a .npy file; "": the same positions as the passages
    start: int
    stop: int

    def records(self) -> tuple[Iterator[Record], Mapping[str, int]]:
        texts = DocumentTexts(self.building)
        return self._records(texts), texts.left_out

    def _records(self, texts: DocumentTexts) -> Iterator[Record]:
        sizes: list[int] = []
        for together in _grouped(self):
            for document_records in self.kind.records(texts, together):
                yield from document_records
                if document_records:
                    sizes.append(len(document_records))
        with open(self.sizes, "wb") as file:
            arrays.write(file, np.array(sizes, np.int64))


@dataclass(frozen=True, kw_only=True)
class JudgedJob(ExamplesJob):
    """Records of some judged queries."""

    kind: JudgedKind
    passages: Records | None
    queries: Sequence[Judged]

    def records(self) -> tuple[Iterator[Record], Mapping[str, int]]:
        texts = JudgedTexts(self.building, self.passages)
        return self.kind.records(texts, self.queries), texts.left_out


@dataclass(frozen=True, kw_only=True)
class PairJob(ExamplesJob):
    """Records of some pairs of a generator."""

    kind: DocumentKind
    pairs: Records
    start: int
    stop: int

    def records(self) -> tuple[Iterator[Record], Mapping[str, int]]:
        texts = DocumentTexts(self.building)
        return self._records(texts), texts.left_out

    def _records(self, texts: DocumentTexts) -> Iterator[Record]:
        assert self.kind.of_pairs is not None, f"{self.kind.name} is not made of pairs"
        for start in range(self.start, self.stop, _TOGETHER):
            stop = min(start + _TOGETHER, self.stop)
            yield from self.kind.of_pairs(texts, list(self.pairs.range(start, stop)))


def write(job: ExamplesJob) -> dict[str, Any]:
    """Writes one shard; returns counts, as JSON."""
    records, left_out = job.records()
    count = store.write_shard(job.target, job.schema, records)
    return {"records": count, "left_out": dict(left_out)}


def document_jobs(passages: Records, files: int, **settings: Any) -> list[DocumentJob]:
    """Documents divided into `files` files (0: by the number of passages)."""
    return [
        DocumentJob(passages=passages, start=start, stop=stop, **settings)
        for start, stop in _ranges(len(passages), files or _files(len(passages)))
    ]


def pair_jobs(pairs: Records, files: int, **settings: Any) -> list[PairJob]:
    """A generator's pairs divided into `files` files (0: by the number of pairs)."""
    return [
        PairJob(pairs=pairs, start=start, stop=stop, **settings)
        for start, stop in _ranges(len(pairs), files or _files(len(pairs)))
    ]


def judged_jobs(queries: Sequence[Judged], files: int, **settings: Any) -> list[JudgedJob]:
    """Judged queries divided into `files` files (0: by the number of queries)."""
    return [
        JudgedJob(queries=queries[start:stop], **settings)
        for start, stop in _ranges(len(queries), files or _files(len(queries) * 8))
    ]


def _files(records: int) -> int:
    """Enough files for eight cores, and files of some 50 MB for large corpora."""
    return max(1, min(8, records // 500), -(-records // 100_000))


def _ranges(total: int, count: int) -> list[tuple[int, int]]:
    """(start, stop) of each of `count` parts of almost the same size."""
    if not 0 < count < 100_000:  # five digits in their names
        raise UserError(
            f"shards = {count} is not a number of files; give 1 to 99,999 (0: as needed)"
        )
    edges = [total * number // count for number in range(count + 1)]
    return list(zip(edges, edges[1:], strict=False))


def places(passages: Records, contexts: Records) -> np.ndarray | None:
    """The position of each passage's contexts (-1: none); None if they are in the same order."""
    if len(passages) == len(contexts):
        if all(a == b for a, b in zip(passages.ids(), contexts.ids(), strict=True)):
            return None
    return np.array([-1 if p is None else p for p in contexts.positions(passages.ids())], np.int64)


def _grouped(job: DocumentJob) -> Iterator[list[DocumentContexts]]:
    """Groups of documents, with enough passages for one efficient tokenisation call."""
    contexts = _Contexts(job)
    group: list[DocumentContexts] = []
    waiting = 0
    for first, passages in documents(job.passages, job.start, job.stop):
        document = DocumentContexts(passages, contexts.of(first, len(passages)))
        document = _part(document, job.building.selection)
        if not document.passages:
            continue
        group.append(document)
        waiting += len(document.passages)
        if waiting >= _TOGETHER:
            yield group
            group, waiting = [], 0
    if group:
        yield group


def _part(document: DocumentContexts, selection: PassageSelection) -> DocumentContexts:
    """The selected passages of a document, with their contexts."""
    if selection.part == "all":
        return document
    taken = [i for i, passage in enumerate(document.passages) if selection.takes(passage)]
    return DocumentContexts(
        [document.passages[i] for i in taken], [document.contexts[i] for i in taken]
    )


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


class _Contexts:
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
