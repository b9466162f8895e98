"""Searches any index, writes runs and formats hits."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries
from qac_jax.inference.encoder import Encoder
from qac_jax.retrieval import bm25, engines, hybrid, index
from qac_jax.retrieval.exact import Exact
from qac_jax.retrieval.hits import Hit, Searchable
from qac_jax.retrieval.vectors import Vectors


KINDS = (index.KIND, bm25.KIND, hybrid.KIND)

# Queries whose rankings are in memory at a time while a run is written: a file of a run in pieces.
TOGETHER = 1024
_SNIPPET = 240


def open_index(path: str | os.PathLike[str], encoder: str = "") -> Searchable:
    """An artefact of one of the KINDS; `encoder` says where its encoder is, if moved."""
    artifact = artifacts.load(path, KINDS)
    if artifact.kind == bm25.KIND:
        return bm25.Bm25(artifact)
    if artifact.kind == hybrid.KIND:
        return hybrid.Hybrid(artifact, encoder=encoder)
    return index.Index(artifact, encoder=encoder)


def approximation(artifact: Artifact) -> dict[str, Any] | None:
    """What is known of an approximate index's recall: k and recall, measured on held-out queries.

    None: the index is exact. {}: its recall was not measured.
    """
    if artifact.info.get("method") not in engines.METHODS:
        return None
    tuning = artifact.info.get("tuning")
    return {"k": tuning["k"], "recall": tuning["held_out_recall"]} if tuning else {}


class ExactSearch(Searchable):
    """Exact search of an artefact of vectors, without building an index."""

    def __init__(self, vectors: Artifact, encoder: Encoder):
        super().__init__(vectors)
        self._exact, self._encoder = Exact(Vectors.of(vectors)), encoder

    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._exact.search(self._encoder.encode(list(questions), "query"), k)


class Runs(Protocol):
    """What writes a run: an index of any kind, a living one included."""

    def run(self, queries: Mapping[str, str], k: int) -> runs.Run: ...


@dataclasses.dataclass(frozen=True)
class Searching:
    """An index, queries and how many passages of each are wanted. Make it with `of`."""

    index: Runs
    queries: Mapping[str, str]
    k: int

    @classmethod
    def of(cls, index: Runs, queries: str | os.PathLike[str], k: int) -> Searching:
        """All queries of a file."""
        if k < 1:
            raise UserError(f"k={k}; expected at least one passage a query")
        texts = {query.id: query.text for query in read_queries(queries)}
        if not texts:
            raise UserError(f"{queries} holds no queries; give a file of them")
        return cls(index, texts, k)

    def pieces(self) -> list[list[str]]:
        """The ids of the queries that are searched together."""
        names = list(self.queries)
        return [names[i : i + TOGETHER] for i in range(0, len(names), TOGETHER)]

    def write(self, file: IO[str], piece: Sequence[str]) -> None:
        """Searches, and writes the lines of a TREC run."""
        texts = {name: self.queries[name] for name in piece}
        runs.write_lines(file, self.index.run(texts, self.k))


def search_file(
    file: IO[str],
    index: Runs,
    queries: str | os.PathLike[str],
    k: int,
) -> int:
    """Writes the run of all queries of a file; returns the number of queries."""
    searching = Searching.of(index, queries, k)
    with progress.Bar("search", total=len(searching.queries), unit="queries") as bar:
        for piece in searching.pieces():
            searching.write(file, piece)
            bar.advance(len(piece))
    return len(searching.queries)


def write_file(path: str, index: Runs, queries: str | os.PathLike[str], k: int) -> int:
    """The same into a file, whole or not at all."""
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            count = search_file(file, index, queries, k)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return count


def shown(question: str, hits: Sequence[Hit]) -> str:
    """Titles, scores and snippets as text for the terminal."""
    lines = []
    for rank, hit in enumerate(hits, 1):
        lines.append(f"{rank:>3}  {hit.score:8.4f}  {hit.title or hit.id}")
        if hit.title:
            lines[-1] += f"  ({hit.id})"
        if hit.place:
            lines.append(f"               {hit.place}")
        if hit.text:
            lines.append(f"               {snippet(hit.text, question)}")
    return "\n".join(lines) or "no passage matches"


def snippet(text: str, question: str, size: int = _SNIPPET) -> str:
    """The part of a text with most of the question's longer words."""
    text = " ".join(text.split())
    if len(text) <= size:
        return text
    wanted = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 3}
    words = list(re.finditer(r"\w+", text))
    matches = [(m.start(), m[0].lower()) for m in words if m[0].lower() in wanted]

    def worth(start: int) -> int:
        return len({word for place, word in matches if start <= place < start + size - 20})

    # A little before the first match reads better than the match itself.
    starts = [0, *(max(place - 40, 0) for place, _ in matches)]
    best = max(starts, key=worth)
    begin = next((m.start() for m in words if m.start() >= best), 0) if best else 0
    end = text.rfind(" ", begin, begin + size) if begin + size < len(text) else len(text)
    end = end if end > begin else begin + size
    return ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")
