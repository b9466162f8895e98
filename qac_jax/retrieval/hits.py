"""What every index can do with queries: runs of passage ids, or hits with titles and texts."""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.artifacts import Artifact
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.retrieval import texts
from qac_jax.retrieval.ids import Ids


# What a hit has as fields of its own.
_SHOWN = ("_id", "title", "text")


@dataclasses.dataclass(frozen=True)
class Hit:
    """One passage of a ranking."""

    id: str
    score: float
    title: str = ""
    text: str = ""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """Of a hybrid index: the score by each of its two parts."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """What else the record of the passage says, such as path, url, heading and columns."""

    @property
    def place(self) -> str:
        """Where it can be read: its file with the page or row, its address; "" where unknown."""
        known = self.metadata
        path = str(known.get("path") or "")
        parts = [f", {part} {known[part]}" for part in ("page", "row") if path and part in known]
        return "  ".join(filter(None, (path + "".join(parts), str(known.get("url") or ""))))


class Searchable(abc.ABC):
    """An artefact that can be searched: an index of vectors, or a BM25 index."""

    def __init__(self, artifact: Artifact):
        self.artifact = artifact
        self.ids = Ids(artifact)

    def __len__(self) -> int:
        return len(self.ids)

    @abc.abstractmethod
    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """(scores float32, rows int64) [questions, k], best first; row -1 where there is none."""

    def run(self, queries: Mapping[str, str], k: int) -> Run:
        """The run of queries (id -> text), as in a TREC file."""
        scores, rows = self.find(list(queries.values()), min(k, len(self)))
        return {
            name: ranking(self.ids, best, gains)
            for name, best, gains in zip(queries, rows, scores, strict=True)
        }

    def ask(self, questions: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The top k passages for each question, with their texts where these are available."""
        scores, rows = self.find(questions, min(k, len(self)))
        return [self._hits(*best) for best in zip(rows, scores, strict=True)]

    @functools.cached_property
    def texts(self) -> Texts:
        return Texts(self.artifact.info["texts"], self.artifact.path)

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        hits = []
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            if row >= 0:
                record = self.texts.record(row) or {}
                title, text = record.get("title") or "", record.get("text") or ""
                further = {key: value for key, value in record.items() if key not in _SHOWN}
                hits.append(Hit(self.ids[row], score, title, text, metadata=further))
        return hits


class Texts:
    """The passage of each row, from the artefacts of passages that an index refers to."""

    def __init__(self, locations: Sequence[Mapping[str, Any]], base: os.PathLike[str]):
        self._locations, self._base = locations, base
        self._records: dict[int, Records | None] = {}
        self.missing: list[str] = []  # folders that no longer exist

    def record(self, row: int) -> dict[str, Any] | None:
        """The passage of a row; None where its texts no longer exist."""
        for number, location in enumerate(self._locations):
            if row < location["rows"]:
                if number not in self._records:
                    artifact = texts.find(location, self._base)
                    self._records[number] = Records(artifact) if artifact else None
                    if artifact is None:
                        self.missing.append(location["path"])
                records = self._records[number]
                return None if records is None else records[row]
            row -= location["rows"]
        raise IndexError(row)


def ranking(ids: Ids, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """The ranking of one query's rows, in trec_eval's order."""
    present = rows >= 0
    return ranked(ids.many(rows[present]), scores[present])
