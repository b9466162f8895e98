"""The rankings of known questions, stored instead of the index that made them.

Negatives are mined from BM25's rankings of the training questions; where neither bm25s nor its
stemmer is installed, an artefact of kind "rankings" answers the same questions with the same rows
and scores. It contains the ids of the passages, `questions.json`, `rows.npy` and `scores.npy`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError
from qac_jax.retrieval import ids
from qac_jax.retrieval.hits import Searchable


KIND = "rankings"
QUESTIONS, ROWS, SCORES = "questions.json", "rows.npy", "scores.npy"


def write(out: Writer, index: Searchable, questions: Sequence[str], k: int) -> None:
    """Searches with every question, and stores the top k of each."""
    asked = list(dict.fromkeys(questions))
    scores, rows = index.find(asked, min(k, len(index)))
    ids.write(out, index.ids)
    with out.open(QUESTIONS) as file:
        json.dump(asked, file, ensure_ascii=False)
    for name, array in ((ROWS, rows.astype(np.int32)), (SCORES, scores.astype(np.float32))):
        with out.temporary(name) as path:
            arrays.save(path, array)
    out.count = len(asked)


class Rankings(Searchable):
    """A finished artefact, which answers its own questions alone."""

    def __init__(self, artifact: Artifact):
        super().__init__(artifact)
        texts = json.loads(artifact.file(QUESTIONS).read_text())
        self._places = {text: place for place, text in enumerate(texts)}
        self._rows = np.load(os.fspath(artifact.file(ROWS)), mmap_mode="r")
        self._scores = np.load(os.fspath(artifact.file(SCORES)), mmap_mode="r")

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        depth = self._rows.shape[1]
        if min(k, len(self)) > depth:
            raise UserError(
                f"{self.artifact.path} holds the top {depth} of each question, and {k} are asked "
                "for; store them again to this depth"
            )
        if unknown := [text for text in questions if text not in self._places]:
            raise UserError(
                f"{self.artifact.path} holds no ranking of {unknown[0]!r}; search the index that "
                "it was made of"
            )
        places = [self._places[text] for text in questions]
        return self._scores[places, :k], self._rows[places, :k].astype(np.int64)
