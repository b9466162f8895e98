"""Searches any index, writes runs, reranks them by a cross-encoder, and formats hits."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.queries import shares
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run
from qac_jax.inference.reranker import Reranker, Texts, rerank
from qac_jax.inference.settings import RerankerOptions
from qac_jax.retrieval import approximate, bm25, corpus, hybrid, index
from qac_jax.retrieval.corpus import Hit, Searchable
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
    cls = hybrid.Hybrid if artifact.kind == hybrid.KIND else index.Index
    return cls(artifact, encoder=encoder)


def approximation(artifact: Artifact, k: int) -> dict[str, Any] | None:
    """The recall of an approximate index on held-out queries ({}: unknown) as it searches the top
    k; None: it is exact."""
    if artifact.info.get("method") not in approximate.METHODS:
        return None
    tuned = {each["k"]: each for each in artifact.info.get("tunings", ())}
    known = tuned.get(approximate.nearest_k(tuned, k))
    return {"k": known["k"], "recall": known["held_out_recall"]} if known else {}


def compared(
    near: index.Index, vectors: Artifact, queries: Mapping[str, str], k: int, sample: int, seed: int
) -> tuple[Run, dict[str, Any]]:
    """Exact search of a sample of the queries, and the recall of the index on it."""
    order = np.random.default_rng(seed).permutation(len(queries))[:sample]
    names = list(queries)
    asked = {names[i]: queries[names[i]] for i in sorted(order)}
    found, exact = near.run(asked, k), near.exactly(Vectors.of(vectors)).run(asked, k)
    shares = [len({*found[q].ids} & {*best.ids}) / len(best.ids) for q, best in exact.items()]
    facts = {"k": k, "recall": float(np.mean(shares)), "queries": len(asked)}
    progress.say(f"{near.artifact.path}: {approximated(facts)}")
    return exact, facts


def approximated(facts: Mapping[str, Any]) -> str:
    """What is known of an approximate search, and what its figures lose, in words."""
    text = "approximate search, recall"
    text += f"@{facts['k']} {facts['recall']:.4f}" if facts else " not measured"
    text += f" on {facts['queries']:,} queries" if "queries" in facts else ""
    if lost := facts.get("loss"):
        text += "; against exact search there "
        text += ", ".join(f"{measure} {0 - loss:+.4f}" for measure, loss in lost.items())
    return text


def reranked(
    run: Run, queries: Mapping[str, str], texts: Texts, depth: int, reranker: Reranker
) -> Run:
    """A run with each query's first `depth` passages in the cross-encoder's order, the others after
    them in their old order, with scores one apart.
    """
    first = {query: ranking.top(depth) for query, ranking in run.items()}
    ordered = rerank(first, queries, texts, reranker)
    for query, ranking in ordered.items():
        if rest := run[query].ids[depth:]:
            scores = ranking.scores.tolist()
            below = [scores[-1] - place for place in range(1, len(rest) + 1)]
            ordered[query] = runs.ranked((*ranking.ids, *rest), [*scores, *below])
    return ordered


def texts_of(index: Artifact) -> Texts:
    """Ids -> texts with titles, of the passages of an index."""
    found = [corpus.find(location, index.path) for location in index.info["texts"]]
    passages = [artifact for artifact in found if artifact is not None]
    if len(passages) < len(found):
        raise UserError(f"the texts of {index.path} are gone; give them with --passages")
    return passage_texts(passages)


def passage_texts(passages: Sequence[Artifact]) -> Texts:
    """Ids -> title and text of a passage, as cross-encoders read them."""
    parts = [Records(artifact) for artifact in passages]
    return lambda ids: [corpus.passage_text(record) for record in corpus.by_id(parts, ids)]


def reranked_hits(question: str, candidates: Sequence[Hit], model: str | Reranker) -> list[Hit]:
    """Hits for a question in the cross-encoder's order, with its log-odds as scores."""
    if not candidates:
        return []
    if not all(hit.text for hit in candidates):
        raise UserError("the cross-encoder reads texts, and those of the index are gone")
    model = _loaded(model) if isinstance(model, str) else model
    read = [corpus.passage_text(dataclasses.asdict(hit)) for hit in candidates]
    standing = shares([h.score for h in candidates]) if model.module.reads_scores else None
    odds = model.score([question] * len(candidates), read, standing)
    order = sorted(range(len(candidates)), key=lambda i: -odds[i])
    return [dataclasses.replace(candidates[i], score=float(odds[i])) for i in order]


@functools.lru_cache(maxsize=2)
def _loaded(place: str) -> Reranker:
    return Reranker.load(place, RerankerOptions(max_length=0))


def shown(question: str, hits: Sequence[Hit], dense: str = "dense") -> str:
    """Hits for the screen; `dense`: what the encoder's score is called beside BM25's."""
    names, lines = {hybrid.DENSE: dense, hybrid.BM25: "BM25"}, []
    for rank, hit in enumerate(hits, 1):
        name = f"{hit.title}  ({hit.id})" if hit.title else hit.id
        parts = "".join(f"  {names[part]} {score:.4g}" for part, score in hit.scores.items())
        lines.append(f"{rank:>3}  {hit.score:8.4f}{parts}  {name}")
        below = (hit.place, hit.text and snippet(hit.text, question))
        lines += [f"               {line}" for line in below if line]
    return "\n".join(lines) or "no passage matches"


def snippet(text: str, question: str, size: int = _SNIPPET) -> str:
    """The part of a text with most of the question's longer words."""
    text = " ".join(text.split())
    if len(text) <= size:
        return text
    wanted = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 3}
    words = list(re.finditer(r"\w+", text))
    places = [(m.start(), m[0].lower()) for m in words if m[0].lower() in wanted]

    def worth(start: int) -> int:
        return len({word for place, word in places if start <= place < start + size - 20})

    # A little before the first match reads better than the match itself.
    best = max([0, *(place - 40 for place, _ in places if place > 40)], key=worth)
    begin = next((m.start() for m in words if m.start() >= best), 0) if best else 0
    end = text.rfind(" ", begin, begin + size) if begin + size < len(text) else len(text)
    end = end if end > begin else begin + size
    return ("… " if begin else "") + text[begin:end] + (" …" if end < len(text) else "")
