"""Why a passage was found: its words that the query has too, and its nearest sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from qac_jax.inference.encoder import Encoder
from qac_jax.live.snapshot import Snapshot
from qac_jax.retrieval.bm25 import WORD, Analyzer
from qac_jax.retrieval.search import snippet


# Sentences of a passage that are compared, and those that are shown.
_READ, _SHOWN = 24, 3
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")

Marked = list[tuple[str, bool]]  # pieces of a text, and whether each matches


def marked(analyzer: Analyzer, question: str, text: str) -> Marked:
    """A text in pieces: words that count as words of the question, and what is between."""
    wanted = set(analyzer.words(question))
    pieces: Marked = []
    end = 0
    for match in WORD.finditer(text):
        if wanted.intersection(analyzer.words(match[0])):
            if match.start() > end:
                pieces.append((text[end : match.start()], False))
            pieces.append((match[0], True))
            end = match.end()
    if end < len(text):
        pieces.append((text[end:], False))
    return pieces


def highlights(analyzer: Analyzer, question: str, title: str, text: str) -> dict[str, Marked]:
    """The title and the part of the text with most words of the question."""
    return {
        "title": marked(analyzer, question, title),
        "snippet": marked(analyzer, question, snippet(text, question, 320)),
    }


def explained(
    snapshot: Snapshot, encoder: Encoder, question: str, vector: np.ndarray, row: int
) -> dict[str, Any]:
    """BM25's score word by word, and the sentences whose vectors are nearest to the query's."""
    record = snapshot.record(row)
    text = record.get("text") or ""
    sentences = [part for part in _SENTENCE_END.split(text) if part.strip()][:_READ]
    words = snapshot.words.by_word(question, row)
    near: list[dict[str, Any]] = []
    if sentences:
        scores = encoder.encode(sentences) @ vector
        for place in np.argsort(-scores, kind="stable")[:_SHOWN].tolist():
            near.append({"text": sentences[place], "score": round(float(scores[place]), 6)})
    return {
        "id": record["_id"],
        "words": [{"word": word, "score": round(gain, 6)} for word, gain in words],
        "bm25": round(sum(gain for _, gain in words), 6),
        "dense": round(float(snapshot.vectors(np.array([row]))[0] @ vector), 6),
        "sentences": near,
        "text": marked(snapshot.analyzer, question, text),
    }


def facets(records: Sequence[dict[str, Any]], most: int = 12) -> dict[str, list[list[Any]]]:
    """The values of short fields among records, with the number of each: what to filter by."""
    from qac_jax.live.metadata import values

    counts: dict[str, dict[Any, int]] = {}
    for record in records:
        for field, value in {(f, v) for f, v in values(record) if len(str(v)) <= 60}:
            of_field = counts.setdefault(field, {})
            of_field[value] = of_field.get(value, 0) + 1
    found: dict[str, list[list[Any]]] = {}
    for field, known in sorted(counts.items(), key=lambda pair: len(pair[1])):
        # A field that is different in nearly every record says nothing about groups.
        shared = sum(count for count in known.values() if count > 1)
        if 2 * shared > sum(known.values()):
            ordered = sorted(known.items(), key=lambda pair: (-pair[1], str(pair[0])))
            found[field] = [[value, count] for value, count in ordered[:most]]
    return found
