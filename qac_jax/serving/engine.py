"""The index behind the server: searches and vectors in batches, changes one by one."""

import collections
import functools
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException

from qac_jax import artifacts
from qac_jax.errors import Busy, UserError
from qac_jax.inference.reranker import Reranker
from qac_jax.live import filters
from qac_jax.live.index import LiveIndex
from qac_jax.live.snapshot import Found, Snapshot
from qac_jax.retrieval import search
from qac_jax.retrieval.bm25 import STOP_WORDS, WORD, Analyzer
from qac_jax.serving.batching import QueryEncoder, busy
from qac_jax.serving.requests import EmbeddingsRequest, ExplainRequest, SearchRequest


_RERANKED = 100
# Seconds that a change waits for those before it.
_PATIENCE = 30
# Hits whose fields become facets; values that such a field has, and how long these may be.
_FACETED, _VALUES, _LONGEST = 100, range(2, 21), 60
# Fields that say where a passage stands in its document, and nothing of what it is about.
_POSITIONS = re.compile(
    r"(.*[._])?(start|end|line|lines|offset|position|number|part|page|anchor)s?"
)
# Characters of a hit's text that are shown.
_SNIPPET = 320
# Sentences of a passage that are compared with a query, and those that are shown.
_READ, _SHOWN = 24, 3
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")

Request = SearchRequest | EmbeddingsRequest | ExplainRequest


class Engine:
    """An index, its encoder and, where it has one, a cross-encoder."""

    def __init__(self, live: LiveIndex, *, reranker: Reranker | None = None):
        self.live, self.reranker = live, reranker
        self.encode: Callable[[Sequence[str], str], np.ndarray] = live.encoder.encode
        self._changing = threading.Lock()
        self._seen: tuple[int, int] | None = None

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

    def tokens(self, request: EmbeddingsRequest) -> int:
        """How many the texts of a request have, special ones included."""
        return sum(map(len, self.live.encoder.tokenize(request.input, request.input_type)))

    def compile(self, most: int, *, now: bool = True) -> None:
        """Encodes queries in few shapes, `most` at a time; compiles these before the first."""
        queries = QueryEncoder(self.live.encoder, most)
        self.encode = queries.encode
        if now:
            queries.warm()

    def answer(self, batch: Sequence[Request]) -> list[Any]:
        """Answers or errors of a batch: searches of equal settings are one product of matrices."""
        snapshot, vectors = self.snapshot, self._vectors(batch)
        answers: list[Any] = [*vectors]
        groups = collections.defaultdict[str, list[tuple[int, SearchRequest]]](list)
        for number, request in enumerate(batch):
            if isinstance(request, SearchRequest):
                key = repr((request.where, request.hybrid, _depth(request)))
                groups[key].append((number, request))
            elif isinstance(request, EmbeddingsRequest):
                answers[number] = vectors[number], self.tokens(request)
            else:
                answers[number] = self._explained(request, vectors[number][0], snapshot)
        for group in groups.values():
            first = group[0][1]
            try:
                rankings = snapshot.find(
                    [request.query for _, request in group],
                    np.concatenate([vectors[number] for number, _ in group]),
                    _depth(first),
                    where=first.where,
                    weight=first.hybrid,
                )
            except UserError as error:  # of the filter
                for number, _ in group:
                    answers[number] = HTTPException(422, str(error))
                continue
            for (number, request), found in zip(group, rankings, strict=True):
                answers[number] = self._searched(request, found, snapshot)
        return answers

    def _vectors(self, batch: Sequence[Request]) -> list[np.ndarray]:
        """Those of each request's texts, by one call for the texts of each side."""
        known: dict[str, dict[str, np.ndarray]] = {}
        for side in ("query", "passage"):
            asked = (text for each in batch if each.input_type == side for text in each.input)
            texts = list(dict.fromkeys(asked))
            known[side] = dict(zip(texts, self.encode(texts, side) if texts else (), strict=True))
        return [np.array([known[each.input_type][text] for text in each.input]) for each in batch]

    def _searched(self, request: SearchRequest, found: Found, snapshot: Snapshot) -> dict[str, Any]:
        query, page = request.query, slice(request.offset, request.offset + request.k)
        if request.rerank and self.reranker is not None:
            hits = search.reranked_hits(query, snapshot.hits(found), self.reranker)[page]
        else:
            hits = snapshot.hits(found, page)
        shown = []
        for hit in hits:
            fields = {"id": hit.id, "score": hit.score, "title": hit.title, "text": hit.text}
            fields["metadata"] = dict(hit.metadata)
            if hit.scores:
                fields["scores"] = dict(hit.scores)
            if request.highlight:
                read = {"title": hit.title, "snippet": search.snippet(hit.text, query, _SNIPPET)}
                mark = functools.partial(marked, snapshot.analyzer, query)
                fields["highlights"] = {name: mark(text) for name, text in read.items()}
            shown.append(fields)
        answer = {"query": query, "hits": shown, "version": snapshot.version}
        answer["passages"] = len(snapshot)
        if found.likely is not None:
            answer["likely"] = round(found.likely, 4)
        if request.facets:
            answer["facets"] = facets(snapshot.records(found.rows[:_FACETED].tolist()))
        return answer

    def _explained(
        self, request: ExplainRequest, vector: np.ndarray, snapshot: Snapshot
    ) -> dict[str, Any] | HTTPException:
        """BM25's score word by word, and the sentences whose vectors are nearest to the query's."""
        row = int(snapshot.rows_of([request.id])[0])
        if row < 0:
            return HTTPException(404, "the index has no passage with this id; take one of a hit")
        text = snapshot.records([row])[0].get("text") or ""
        sentences = [part for part in _SENTENCE_END.split(text) if part.strip()][:_READ]
        words = snapshot.by_word(request.query, row)
        scores = self.live.encoder.encode(sentences) @ vector
        nearest = np.argsort(-scores, kind="stable")[:_SHOWN].tolist()
        return {
            "id": request.id,
            "words": [{"word": word, "score": round(gain, 6)} for word, gain in words],
            "bm25": round(sum(gain for _, gain in words), 6),
            "dense": round(float(snapshot.vectors(np.array([row]))[0] @ vector), 6),
            "sentences": [
                {"text": sentences[place], "score": round(float(scores[place]), 6)}
                for place in nearest
            ],
        }

    def add(self, passages: Sequence[str | dict[str, Any]], replace: bool) -> dict[str, Any]:
        """Adds passages: when this returns, they are on the disk."""
        return self._change(lambda: {"ids": self.live.add(passages, replace=replace)})

    def delete(self, ids: list[str]) -> dict[str, Any]:
        """Deletes passages; ids that the index does not have are listed."""

        def work() -> dict[str, Any]:
            deleted = set(self.live.delete(ids, missing_ok=True))
            return {"deleted": len(deleted), "missing": [i for i in ids if i not in deleted]}

        return self._change(work)

    def _change(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if not self._changing.acquire(timeout=_PATIENCE):
            raise busy()
        try:
            done = work()
            return {**done, "version": self.live.snapshot.version, "passages": len(self.live)}
        except Busy as error:  # another process is writing
            raise busy() from error
        except UserError as error:
            # What the library says names the folder; a client has no business with it.
            sentence = str(error).replace(str(self.live.folder), "the index")
            raise HTTPException(409 if "already" in sentence else 422, sentence) from error
        finally:
            self._changing.release()


def _depth(request: SearchRequest) -> int:
    """Hits that a search needs."""
    last = request.offset + request.k
    return max(last, _FACETED * request.facets, _RERANKED * request.rerank)


def marked(analyzer: Analyzer, question: str, text: str) -> list[tuple[str, bool]]:
    """A text in pieces: words that count as words of the question, and what is between."""
    # Words of questions say nothing of what is asked.
    said = [word for word in WORD.findall(question.lower()) if word not in STOP_WORDS["snowball"]]
    wanted = set(analyzer.words(" ".join(said) or question))
    pieces, end = [], 0
    for match in WORD.finditer(text):
        if wanted.intersection(analyzer.words(match[0])):
            pieces += [(text[end : match.start()], False), (match[0], True)]
            end = match.end()
    return [(piece, hit) for piece, hit in [*pieces, (text[end:], False)] if piece]


def facets(records: Sequence[dict[str, Any]]) -> dict[str, list[tuple[Any, int]]]:
    """Fields of few values among records, with the number of each: what to filter by.

    Of fields that say the same of each record, such as path and document, one is kept.
    """
    said: dict[str, set[tuple[int, Any]]] = collections.defaultdict(set)
    for number, record in enumerate(records):
        for field, value in filters.values(record):
            said[field].add((number, value))
    counts = {field: collections.Counter(v for _, v in all_of) for field, all_of in said.items()}
    found = {
        field: sorted(known.items(), key=lambda pair: (-pair[1], str(pair[0])))
        for field, known in sorted(counts.items(), key=lambda pair: (len(pair[1]), pair[0]))
        if len(known) in _VALUES
        and all(len(str(value)) <= _LONGEST for value in known)
        # Values that differ in nearly every record say nothing about groups.
        and 2 * sum(count for count in known.values() if count > 1) > known.total()
        and not _POSITIONS.fullmatch(field.lower())
    }
    fields = list(found)
    return {
        field: values
        for place, (field, values) in enumerate(found.items())
        if not any(said[before] == said[field] for before in fields[:place])
    }
