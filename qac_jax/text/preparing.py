"""One shard of documents into one file of passages: the job that `prepare` runs everywhere."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, Shard, read_shard
from qac_jax.formats.records import Record, write_lines
from qac_jax.formats.repeats import Ids, ShardIds
from qac_jax.text import sentences, tokenizers
from qac_jax.text.cutting import Cutting
from qac_jax.text.passages import Cutter


@dataclass(frozen=True)
class PrepareJob:
    """All that a worker needs; `target` is the file it writes, `ids` where it notes the ids."""

    shard: Shard
    target: str
    ids: str
    cutting: Cutting
    seed: int
    tokenizer: str
    splitter: str
    skip_bad: int = 0
    drop: Mapping[int, bool] = field(default_factory=dict)


def prepare_shard(job: PrepareJob) -> dict[str, Any]:
    """Writes the passages of one shard; returns what the parent has to know, as JSON."""
    bad = BadLines(job.skip_bad)
    cutter = cutter_of(job.cutting, job.seed, job.tokenizer, job.splitter)
    ids = ShardIds()
    facts: dict[str, Any] = {"documents": 0, "without_passages": 0}

    def records() -> Iterator[Record]:
        for document in _noted(read_shard(job.shard, bad, job.drop), ids):
            facts["documents"] += 1
            empty = True
            for record in cutter.records(document):
                empty = False
                yield record
            facts["without_passages"] += empty

    facts.update(write_lines(job.target, records()))
    facts["too_short"] = cutter.too_short
    facts["sentences_by"] = cutter.sentences_by
    facts.update(bad.facts())
    if not job.drop:
        hashes, owners, contents = ids.arrays()
        with open(f"{job.ids}.part", "wb") as file:
            np.savez(file, hashes=hashes, owners=owners, contents=contents)
        os.replace(f"{job.ids}.part", job.ids)
    return facts


def cutter_of(cutting: Cutting, seed: int, tokenizer: str, splitter: str) -> Cutter:
    """A cutter with what its way of cutting needs, and no more."""
    if cutting.cut == "none":
        return Cutter(cutting, seed=seed)
    ends = functools.partial(sentences.load, splitter)
    return Cutter(cutting, tokenizers.load(tokenizer), ends, seed=seed)


def ids_of(job: PrepareJob) -> Ids:
    """The hashes of the ids that a finished job met, whose they are, and what these say."""
    with np.load(job.ids) as ids:
        return ids["hashes"], ids["owners"], ids["contents"]


def without(job: PrepareJob, drop: Mapping[int, bool]) -> PrepareJob:
    """The same job, to which these documents are repeated."""
    return dataclasses.replace(job, drop=drop)


def texts(shards: Iterable[Shard], bad: BadLines) -> Iterator[str]:
    """The texts of a corpus, to learn a vocabulary or the ends of sentences from."""
    with progress.Bar("reading", unit="documents") as bar:
        for shard in shards:
            for document in read_shard(shard, bad):
                bar.advance()
                for part in document.sections or document.passages:
                    yield part.text


def _noted(documents: Iterator[Document], ids: ShardIds) -> Iterator[Document]:
    for document in documents:
        ids.add(document)
        yield document
