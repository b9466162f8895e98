"""Questions that are judged by names: "numpy.vstack answers it", whatever its passages are called.

Such judgements outlive the texts: a new version of a library has other passages, but the same
names. One JSON object a line: {"_id", "text", "relevant": [names], "split"}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax.errors import DataError


class NamedQuestion(NamedTuple):
    id: str
    text: str
    names: tuple[str, ...]
    split: str


def read(path: str | os.PathLike[str]) -> list[NamedQuestion]:
    """All questions of a file."""
    questions: dict[str, NamedQuestion] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                question = _parsed(line, path, number)
                if question.id in questions:
                    message = f"question {question.id!r} stands there already"
                    raise DataError(message, file=path, line=number)
                questions[question.id] = question
    if not questions:
        raise DataError("there is no question in the file", file=path)
    return list(questions.values())


def judge(
    questions: Sequence[NamedQuestion], passages: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """query -> passage -> 1 for every passage whose title, or another name of it, answers it."""
    wanted: dict[str, list[str]] = {}
    for question in questions:
        for name in question.names:
            wanted.setdefault(name, []).append(question.id)
    judged: dict[str, dict[str, int]] = {question.id: {} for question in questions}
    for record in passages:
        for name in (record.get("title") or "", *record.get("aliases", ())):
            for query in wanted.get(name, ()):
                judged[query][record["_id"]] = 1
    return judged


def _parsed(line: str, path: str | os.PathLike[str], number: int) -> NamedQuestion:
    try:
        record = json.loads(line)
        texts = record["_id"], record["text"], record.get("split", "test")
        names = tuple(record["relevant"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a question judged by names ({error!r})", file=path, line=number
        ) from None
    if not all(isinstance(text, str) and text for text in (*texts, *names)) or not names:
        raise DataError("an empty id, text or name, or no name at all", file=path, line=number)
    return NamedQuestion(texts[0], texts[1], names, texts[2])
