"""One shard of documents into one file of passages: the job that `prepare` runs everywhere."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qac_jax.formats.bad_lines import BadLine, BadLines
from qac_jax.formats.documents import Document, Shard, read_shard
from qac_jax.formats.records import Record, write_lines
from qac_jax.formats.repeats import ShardIds
from qac_jax.text import sentences, tokenizers
from qac_jax.text.passages import Cutter, Cutting


@dataclass(frozen=True)
class Job:
    """All that a worker needs; `target` is the file it writes, `ids` where it notes the ids."""

    shard: Shard
    target: str
    ids: str
    cutting: Cutting
    tokenizer: str
    splitter: str
    skip_bad: int = 0
    drop: frozenset[int] = field(default_factory=frozenset)


def prepare_shard(job: Job) -> dict[str, Any]:
    """Writes the passages of one shard; returns what the parent has to know, as JSON."""
    bad = BadLines(job.skip_bad)
    cutter = _cutter(job)
    ids = ShardIds()
    answer: dict[str, Any] = {"documents": 0, "without_passages": 0}

    def records() -> Iterator[Record]:
        for document in _noted(read_shard(job.shard, bad, job.drop), ids):
            answer["documents"] += 1
            empty = True
            for record in cutter.records(document):
                empty = False
                yield record
            answer["without_passages"] += empty

    answer.update(write_lines(job.target, records()))
    answer["too_short"] = cutter.too_short
    answer["sentences_by"] = cutter.sentences_by
    answer["bad"] = [list(line) for line in bad.items]
    answer["left_out"] = dict(bad.left_out)
    if not job.drop:
        hashes, owners = ids.arrays()
        with open(f"{job.ids}.part", "wb") as file:
            np.savez(file, hashes=hashes, owners=owners)
        os.replace(f"{job.ids}.part", job.ids)
    return answer


def _cutter(job: Job) -> Cutter:
    """A cutter with what its way of cutting needs, and no more."""
    if job.cutting.cut == "none":
        return Cutter(job.cutting)
    splitter = functools.partial(sentences.load, job.splitter)
    return Cutter(job.cutting, tokenizers.load(job.tokenizer), splitter)


def bad_lines(answer: Mapping[str, Any]) -> list[BadLine]:
    """What a shard skipped, as it was before it went through JSON."""
    return [BadLine(*line) for line in answer["bad"]]


def _noted(documents: Iterator[Document], ids: ShardIds) -> Iterator[Document]:
    for document in documents:
        ids.add(document)
        yield document
