"""Imports queries of other tools: large language models, doc2query, AugTriever, PAQ.

A line is JSON, with a passage's id under one of several names and

- "queries" or "query": a text or a list of texts (doc2query, the released QAC code);
- "contexts": a list of {"text", "origin", "score"}, qac_jax's own format;
- "outputs": {origin: text or list of texts} (AugTriever's AugQ, whose own names of origins become
  those of our strategies: T03B-topic is tqgen_topic);

or "question" with "answers": [{"passage_id", …}, …] (PAQ); or two columns, id and query. A passage
may have several lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, Piece, expand, text_lines
from qac_jax.formats.lines import columns, json_object, string


_IDS = ("_id", "id", "docid", "doc_id", "pid", "passage_id", "text_id")
# What AugQ calls the outputs of T0-3B's four prompts and of doc2query's text2query.
_AUGQ = {
    "T03B-topic": "tqgen_topic",
    "T03B-title": "tqgen_title",
    "T03B-absum": "tqgen_absum",
    "T03B-exsum": "tqgen_exsum",
    "D2Q-t2q": "qgen_d2q",
}
_TEXTS = ("queries", "query", "predicted_queries", "questions", "question")


class Imported(NamedTuple):
    """Queries of one passage, and the line they come from."""

    id: str
    contexts: list[dict[str, Any]]
    place: Place


def read_contexts(
    path: str | os.PathLike[str], bad: BadLines, origin: str = "imported"
) -> Iterator[Imported]:
    """The queries of every line; `origin` is the default origin."""
    for file in expand(path, (".jsonl", ".json", ".tsv")):
        for line in text_lines(Piece(file), bad):
            try:
                yield from _parsed(line, origin)
            except BadRecord as error:
                bad.add(error, line.place)


def _parsed(line: Line, origin: str) -> Iterator[Imported]:
    if not line.text.lstrip().startswith("{"):
        name, query = columns(line.text, ("id", "query"))
        yield Imported(name, [_context(query, origin)], line.place)
        return
    record = json_object(line.text)
    if "question" in record and isinstance(record.get("answers"), list):
        for name in dict.fromkeys(_passages(record)):
            yield Imported(name, _as_contexts(record["question"], origin, "question"), line.place)
        return
    name = string(record, *_IDS, what="id of a passage")
    yield Imported(name, list(_contexts(record, origin)), line.place)


def _contexts(record: Mapping[str, Any], origin: str) -> Iterator[dict[str, Any]]:
    if "contexts" in record:
        contexts = record["contexts"]
        if not isinstance(contexts, list):
            raise BadRecord("'contexts' is not a list")
        for context in contexts:
            yield _whole(context, origin)
    elif "outputs" in record:
        if not isinstance(record["outputs"], Mapping):
            raise BadRecord("'outputs' is not an object {origin: text}")
        for name, texts in record["outputs"].items():
            yield from _as_contexts(texts, _AUGQ.get(name) or name, f"outputs.{name}")
    else:
        key = next((key for key in _TEXTS if key in record), None)
        if key is None:
            raise BadRecord(
                f"no queries: expected one of the keys contexts, outputs, {', '.join(_TEXTS)}, "
                f"found {', '.join(list(record)[:8])}"
            )
        yield from _as_contexts(record[key], origin, key)


def _as_contexts(texts: Any, origin: str, what: str) -> list[dict[str, Any]]:
    """Contexts from a text or a list of texts; none from null."""
    if texts is None:
        return []
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRecord(f"{what!r} is neither a text nor a list of texts")
    return [_context(text, origin) for text in texts]


def _whole(context: Any, origin: str) -> dict[str, Any]:
    if isinstance(context, str):
        return _context(context, origin)
    if not isinstance(context, Mapping) or not isinstance(context.get("text"), str):
        raise BadRecord("a context is neither a text nor an object with a 'text'")
    score = context.get("score")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
        raise BadRecord(f"the score {score!r} of a context is not a number")
    return _context(context["text"], str(context.get("origin") or origin), score)


def _context(text: str, origin: str, score: float | None = None) -> dict[str, Any]:
    return {"text": text.strip(), "origin": origin, "score": score}


def _passages(record: Mapping[str, Any]) -> Iterator[str]:
    for answer in record["answers"]:
        if not isinstance(answer, Mapping):
            raise BadRecord("'answers' is not a list of objects with a 'passage_id'")
        yield string(answer, "passage_id", what="passage")
