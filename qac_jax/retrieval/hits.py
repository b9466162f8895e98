"""What a search gives: rows become ids for runs, and passages for people."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.retrieval import texts
from qac_jax.retrieval.ids import Ids
from qac_jax.retrieval.runs import Ranking, ranked
from qac_jax.text.records import Records


@dataclasses.dataclass(frozen=True)
class Hit:
    """One passage that was found."""

    id: str
    score: float
    title: str = ""
    text: str = ""


class Texts:
    """The records of rows, from the artefacts of passages that an index remembers."""

    def __init__(self, locations: Sequence[Mapping[str, Any]], base: os.PathLike[str]):
        self._locations, self._base = locations, base
        self._records: dict[int, Records | None] = {}
        self.missing: list[str] = []  # folders that are not there any more

    def record(self, row: int) -> dict[str, Any] | None:
        """The passage of a row; None where its texts are gone."""
        for number, location in enumerate(self._locations):
            if row < location["rows"]:
                if number not in self._records:
                    found = texts.find(location, self._base)
                    self._records[number] = Records(found) if found else None
                    if found is None:
                        self.missing.append(location["path"])
                records = self._records[number]
                return None if records is None else records[row]
            row -= location["rows"]
        raise IndexError(row)


def hits(ids: Ids, known: Texts, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
    """Rows with their ids and texts; rows below 0 are nothing."""
    found = []
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        if row >= 0:
            record = known.record(row) or {}
            title, text = record.get("title") or "", record.get("text") or ""
            found.append(Hit(ids[row], score, title, text))
    return found


def ranking(ids: Ids, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """One query's rows as ids, in trec_eval's order."""
    found = rows >= 0
    return ranked(ids.many(rows[found]), scores[found])
