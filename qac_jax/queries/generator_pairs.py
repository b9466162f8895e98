"""Training pairs of a generator: a text with a prompt before or after it, and target texts.

A record is {"_id", "before", "text", "after", "targets"}. Where the whole is too long for the
model only the text is truncated, so a prompt after it is never lost.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.queries import targets
from qac_jax.queries.prompts import PROMPTS, Prompt
from qac_jax.text.sentences import Splitter


Record = dict[str, Any]

# The fewest words that must remain of a passage when its summary line is the question.
_LEFT = 12


def questions(
    passages: Iterable[Mapping[str, Any]],
    questions_of: Mapping[str, Sequence[str]],
    prefix: str,
    *,
    titled: bool = False,
) -> Iterator[Record]:
    """Passages with the questions that they answer; a docstring's summary line is its question.

    The line is removed from the body, or the generator would learn to copy the first sentence.
    titled: titles stand before texts.
    """
    for passage in passages:
        answers = list(questions_of.get(passage["_id"], ()))
        text = passage["text"]
        if summary := passage.get("summary"):
            text = targets.without(text, summary)
            if len(text.split()) >= _LEFT:
                answers.append(" ".join(summary.split()).rstrip("."))
        if answers:
            title = (passage.get("title") or "").strip() if titled else ""
            yield _record(passage["_id"], prefix, f"{title} {text}" if title else text, "", answers)


def label_free(
    passages: Sequence[Mapping[str, Any]], splitter: Splitter, prompts: Mapping[str, Prompt]
) -> Iterator[Record]:
    """Passages with each of the four prompts, with targets from the passages alone."""
    frequencies = targets.Frequencies(passage["text"] for passage in passages)
    for passage in passages:
        for target in targets.label_free(passage, frequencies, splitter):
            prompt = prompts[target.prompt]
            name = f"{passage['_id']}#{target.prompt}"
            yield _record(name, prompt.before, target.text, prompt.after, [target.answer])


def judged_queries(folder: str, splits: Sequence[str]) -> dict[str, list[str]]:
    """passage -> its questions in these splits of a BEIR folder."""
    texts = {query.id: query.text for query in read_queries(os.path.join(folder, "queries.jsonl"))}
    questions_of: dict[str, list[str]] = defaultdict(list)
    for split in splits:
        file = os.path.join(folder, "qrels", f"{split}.tsv")
        for query, judged in by_query(read_judgements(file, queries=texts)).items():
            for passage, grade in judged.items():
                if grade > 0:
                    questions_of[passage].append(texts[query])
    return questions_of


def documents_apart(
    passages: Sequence[Mapping[str, Any]], unseen: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(passages of documents without a passage in `unseen`, the other passages)."""
    theirs = {p["doc"] for p in passages if p["_id"] in unseen}
    return (
        [p for p in passages if p["doc"] not in theirs],
        [p for p in passages if p["doc"] in theirs],
    )


def _record(name: str, before: str, text: str, after: str, answers: Sequence[str]) -> Record:
    return {"_id": name, "before": before, "text": text, "after": after, "targets": list(answers)}


def check_prompts(prompts: Mapping[str, Prompt]) -> None:
    """Raises UserError where one of the four prompts is missing."""
    if missing := sorted(set(PROMPTS) - set(prompts)):
        raise UserError(f"prompts lack {', '.join(missing)}; expected {', '.join(PROMPTS)}")
