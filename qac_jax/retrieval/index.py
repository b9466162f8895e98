"""An index folder, exact, of ScaNN or of FAISS: vectors in, ids and texts out.

    index = Index.load("out/index")
    index.ask(["a question"], k=10)          # a list of hits for each question

Artefacts of kind "index" contain the ids, `index.json` (how it was built) and parts, one for each
artefact of vectors in it: `part-00000/` with the vectors (exact) or the library's files.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import Artifact, stores
from qac_jax.errors import UserError
from qac_jax.hub import names
from qac_jax.inference.encoder import Encoder
from qac_jax.retrieval import engines
from qac_jax.retrieval.approximate import Effort
from qac_jax.retrieval.hits import Searchable
from qac_jax.retrieval.vectors import Vectors, shard_names, windows_names
from qac_jax.retrieval.windows import Windows


KIND = "index"
DESCRIPTION = "index.json"
EXACT = "exact"
METHODS = (EXACT, *engines.METHODS)

# Questions of one search: their rankings of 1,000 take little memory.
_TOGETHER = 4096


class Searcher(Protocol):
    """What exact and approximate search have in common."""

    @property
    def width(self) -> int:
        """Dimensions of a vector."""
        ...

    def __len__(self) -> int: ...

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(scores float32, rows int64) [queries, k], best first; row -1 where there is none."""
        ...


class Index(Searchable):
    """A finished index, opened: its searcher, ids, and where texts and encoder are."""

    def __init__(self, artifact: Artifact, *, encoder: str = ""):
        super().__init__(artifact)
        self.description: dict[str, Any] = json.loads(artifact.file(DESCRIPTION).read_text())
        self._encoder = encoder

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: str = "") -> Index:
        """`encoder`: where the encoder's folder is, if it was moved."""
        return cls(artifacts.load(path, KIND), encoder=encoder)

    @functools.cached_property
    def searcher(self) -> Searcher:
        """Loaded at first use."""
        if self.description["method"] == EXACT:
            from qac_jax.retrieval.exact import Exact

            return Exact(self.vectors)
        effort = self.artifact.info.get("effort")
        parts = self.description["parts"]
        return engines.opened(
            self.description["method"],
            [self.artifact.path / name for name in parts],
            [part["rows"] for part in parts.values()],
            self.description["dimension"],
            [part["preset"] for part in parts.values()],
            Effort(**effort) if effort else None,
        )

    @functools.cached_property
    def vectors(self) -> Vectors:
        """The vectors of an exact index."""
        files = (
            os.fspath(self.artifact.path / name)
            for part in self.description["parts"]
            for name in shard_names(self.artifact, f"{part}/")
        )
        return Vectors(list(files))

    @functools.cached_property
    def windows(self) -> Windows | None:
        """The windows of the passages, where every part of an exact index has them."""
        if self.description["method"] != EXACT:
            return None
        files = []
        for part in self.description["parts"]:
            count = len(shard_names(self.artifact, f"{part}/"))
            for number in range(count):
                files.append([f"{part}/{name}" for name in windows_names(number, count)])
        if not files or not all(name in self.artifact.files for pair in files for name in pair):
            return None
        return Windows([[os.fspath(self.artifact.path / name) for name in pair] for pair in files])

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the vectors, with the same options."""
        known = self.artifact.info["encoder"]
        return Encoder.remembered(known, place_of_encoder(self.artifact, self._encoder))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Searcher.search`."""
        parts = [
            self.searcher.search(queries[start : start + _TOGETHER], k)
            for start in range(0, len(queries), _TOGETHER)
        ] or [self.searcher.search(queries, k)]
        scores, rows = zip(*parts, strict=True)
        return np.concatenate(scores), np.concatenate(rows)

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        return self.search(self.encoder.encode(questions, "query"), k)


def place_of_encoder(index: Artifact, moved: str = "") -> str:
    """Where the encoder of an index is: where it was moved to, or beside the index as before, or
    where it was."""
    known = index.info["encoder"]
    places = [moved or known["path"]]
    if not moved and "relative" in known:
        together = os.path.join(os.fspath(index.path), known["relative"])
        places.insert(0, os.path.normpath(together))
    for place in places:
        stores.present(place)
        if os.path.isdir(place):
            return place
    if names.parsed(places[-1]) is not None:
        return os.fspath(names.folder(places[-1]))
    raise UserError(
        f"the encoder of {index.path} is not at {places[-1]} any more; say where it "
        "is by --encoder (in Python: Retriever.load(…, model=…))"
    )
