"""What the server does with an index: searches and vectors in batches, changes one by one."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.errors import UserError
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.live import convert, manifest
from qac_jax.live.index import LiveIndex
from qac_jax.live.snapshot import Found, Snapshot
from qac_jax.retrieval import reranking
from qac_jax.retrieval.hits import Hit
from qac_jax.serving import explain, problems
from qac_jax.serving.encoding import QueryEncoder
from qac_jax.serving.problems import Problem
from qac_jax.serving.requests import SearchRequest
from qac_jax.serving.settings import Serving


_RERANKED = 100
_FACETED = 100


class EncodeRequest(NamedTuple):
    """Texts whose vectors are wanted."""

    texts: Sequence[str]
    side: str = "passage"


class ExplainRequest(NamedTuple):
    """Why a query finds a passage."""

    query: str
    id: str


Request = SearchRequest | EncodeRequest | ExplainRequest


class Engine:
    """An index, its encoder and, where it has one, a cross-encoder."""

    def __init__(self, live: LiveIndex, *, writable: bool = True, reranker: Reranker | None = None):
        self.live, self.writable, self.reranker = live, writable, reranker
        self.encode: Callable[[Sequence[str], str], np.ndarray] = live.encoder.encode
        self._changing = threading.Lock()
        self._seen: tuple[int, int] | None = None

    @classmethod
    def load(cls, settings: Serving) -> Engine:
        """A living index as it is; of another one a copy, which cannot change."""
        known = artifacts.peek(settings.index)
        reranker = None
        if settings.reranker:
            reranker = Reranker.load(settings.reranker, RerankerOptions(max_length=0))
        if known is not None and known["kind"] == manifest.KIND:
            return cls(LiveIndex(settings.index, encoder=settings.encoder), reranker=reranker)
        source = artifacts.load(settings.index, (manifest.KIND, *convert.KINDS))
        root = Path(tempfile.mkdtemp(prefix="qac_jax-"))
        progress.say(f"serve: copying {source.count:,} passages; changes need a living index")
        live = convert.living(source, root / "live", moved=settings.encoder)
        made = cls(live, writable=False, reranker=reranker)
        weakref.finalize(made, shutil.rmtree, root, ignore_errors=True)
        return made

    @property
    def pooling(self) -> str:
        """What makes one vector of those of the tokens: mean, cls …"""
        return self.live.encoder.module.config.pooling

    @property
    def snapshot(self) -> Snapshot:
        """The newest version: also what others have changed in the folder."""
        status = os.stat(self.live.folder / artifacts.COMMIT)
        seen = (status.st_ino, status.st_mtime_ns)
        # While this server changes the index itself, it sees the last version that is finished.
        if seen != self._seen and self._changing.acquire(blocking=False):
            try:
                self.live.refresh()
                self._seen = seen
            finally:
                self._changing.release()
        return self.live.snapshot

    @property
    def name(self) -> str:
        """That of the encoder's folder, or at the Hub: no path."""
        place = str(self.live.settings.encoder["path"]).rstrip("/")
        return Path(place).name if os.path.isabs(place) else place

    def tokens(self, request: EncodeRequest) -> int:
        """How many the texts of a request have, special ones included."""
        return sum(map(len, self.live.encoder.tokenize(request.texts, request.side)))

    def compile(self, most: int, *, now: bool = True) -> None:
        """Encodes queries in few shapes, `most` at a time; compiles these before the first."""
        queries = QueryEncoder(self.live.encoder, most)
        self.encode = queries.encode
        if now:
            queries.warm()

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """The answers of a batch; an exception for a request that has none."""
        snapshot = self.snapshot
        vectors = self._vectors(requests, snapshot)
        found = self._found(requests, vectors, snapshot)
        answers: list[Any] = []
        for number, (request, own) in enumerate(zip(requests, vectors, strict=True)):
            try:
                if isinstance(request, EncodeRequest):
                    answers.append(own)
                elif isinstance(request, SearchRequest):
                    answers.append(self._searched(request, found[number], snapshot))
                else:
                    answers.append(self._explained(request, own[0], snapshot))
            except Exception as error:  # of this request alone
                answers.append(error)
        return answers

    def _found(
        self, requests: Sequence[Request], vectors: Sequence[np.ndarray], snapshot: Snapshot
    ) -> dict[int, Found]:
        """The rankings of the searches; those of equal settings by one product of matrices."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            if isinstance(request, SearchRequest):
                key = repr((request.where, request.hybrid, _depth(request)))
                groups.setdefault(key, []).append(number)
        found: dict[int, Found] = {}
        for numbers in groups.values():
            alike = [request for n in numbers if isinstance(request := requests[n], SearchRequest)]
            rankings = snapshot.find(
                [request.query for request in alike],
                np.concatenate([vectors[number] for number in numbers]),
                _depth(alike[0]),
                where=alike[0].where,
                weight=alike[0].hybrid,
            )
            found |= dict(zip(numbers, rankings, strict=True))
        return found

    def _explained(
        self, request: ExplainRequest, vector: np.ndarray, snapshot: Snapshot
    ) -> dict[str, Any]:
        (row,) = snapshot.rows_of([request.id])
        if row < 0:
            raise Problem(404, "the index has no passage with this id")
        return explain.explained(snapshot, self.live.encoder, request.query, vector, int(row))

    def _vectors(self, requests: Sequence[Request], snapshot: Snapshot) -> list[np.ndarray]:
        """Those of each request's texts, by one call for the texts of each side."""
        wanted: dict[str, dict[str, int]] = {"query": {}, "passage": {}}
        keys: list[tuple[str, Sequence[str]]] = []
        default = snapshot.settings.fusion.weight
        for request in requests:
            side, texts = "query", list[str]()
            if isinstance(request, EncodeRequest):
                side, texts = request.side, list(request.texts)
            elif isinstance(request, ExplainRequest):
                texts = [request.query]
            elif (default if request.hybrid is None else request.hybrid) < 1:
                texts = [request.query]
            keys.append((side, texts))
            for text in texts:
                wanted[side].setdefault(text, len(wanted[side]))
        made = {side: self._encoded(list(texts), side) for side, texts in wanted.items()}
        return [made[side][[wanted[side][text] for text in texts]] for side, texts in keys]

    def _encoded(self, texts: list[str], side: str) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.live.settings.dimension), np.float32)
        return self.encode(texts, side)

    def _searched(self, request: SearchRequest, found: Found, snapshot: Snapshot) -> dict[str, Any]:
        last = request.offset + request.k
        if request.rerank:
            if self.reranker is None:
                raise Problem(422, "this server has no cross-encoder; leave out rerank")
            hits = reranking.hits(request.query, snapshot.hits(found), self.reranker)
            hits = hits[request.offset : last]
        else:
            page = slice(request.offset, last)
            parts = None if found.parts is None else found.parts[:, page]
            hits = snapshot.hits(Found(found.rows[page], found.scores[page], parts))
        answer: dict[str, Any] = {
            "query": request.query,
            "hits": [self._shown(hit, request, snapshot) for hit in hits],
            "version": snapshot.version,
            "passages": len(snapshot),
        }
        if request.facets:
            first = found.rows[:_FACETED].tolist()
            answer["facets"] = explain.facets([snapshot.record(row) for row in first])
        return answer

    def _shown(self, hit: Hit, request: SearchRequest, snapshot: Snapshot) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": hit.id, "score": hit.score, "title": hit.title}
        shown |= {"text": hit.text, "metadata": dict(hit.metadata)}
        if hit.scores:
            shown["scores"] = dict(hit.scores)
        if request.highlight:
            words = (snapshot.analyzer, request.query, hit.title, hit.text)
            shown["highlights"] = explain.highlights(*words)
        return shown

    def add(self, passages: list[dict[str, Any]], replace: bool) -> dict[str, Any]:
        """Adds passages: when this returns, they are on the disk."""
        return self._change(lambda: {"ids": self.live.add(passages, replace=replace)})

    def delete(self, ids: list[str]) -> dict[str, Any]:
        """Deletes passages; ids that the index does not have are listed."""

        def work() -> dict[str, Any]:
            deleted = self.live.delete(ids, missing_ok=True)
            gone = set(deleted)
            return {"deleted": len(deleted), "missing": [i for i in ids if i not in gone]}

        return self._change(work)

    def _change(self, work: Any) -> dict[str, Any]:
        with self._changing:
            try:
                done = work()
            except UserError as error:
                if "being written" in str(error):  # by another process
                    raise problems.busy() from error
                # What the library says names the folder; a client has no business with it.
                sentence = str(error).replace(str(self.live.folder), "the index")
                raise Problem(409 if "already" in sentence else 422, sentence) from error
            return {**done, "version": self.live.snapshot.version, "passages": len(self.live)}


def _depth(request: SearchRequest) -> int:
    """Hits that a search needs."""
    last = request.offset + request.k
    return max(last, _FACETED * request.facets, _RERANKED * request.rerank)
