"""Does anything that trains or expands know a test question? Then the figures would be worthless.

Two leaks are looked for: a validation or test question whose text is among the contexts or the
training questions, and a context or a training question of a passage that was kept aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from qac_jax.data.judged import generated_from
from qac_jax.errors import UserError
from qac_jax.queries.filtering import plain


class Used(NamedTuple):
    """A text that trains a model or expands an index, and the passage it was made of."""

    text: str
    passage: str
    where: str


def of_contexts(records: Iterable[Mapping[str, Any]], where: str) -> Iterator[Used]:
    """The texts of an artefact of contexts."""
    for record in records:
        for context in record["contexts"]:
            yield Used(context["text"], record["_id"], where)


def of_negatives(records: Iterable[Mapping[str, Any]], where: str) -> Iterator[Used]:
    """The queries of an artefact of negatives or of a teacher's candidates.

    A query of people belongs to no passage: they may ask about any.
    """
    for record in records:
        yield Used(record.get("query", ""), generated_from(record["_id"]), where)


def of_groups(records: Iterable[Mapping[str, Any]], where: str) -> Iterator[Used]:
    """The queries of an artefact of groups."""
    for record in records:
        for name, text in zip(record["query_ids"], record["queries"], strict=True):
            yield Used(text, generated_from(name), where)


def of_queries(texts: Mapping[str, str], where: str) -> Iterator[Used]:
    """Training questions by their ids."""
    for name, text in texts.items():
        yield Used(text, generated_from(name), where)


def check(used: Iterable[Used], asked: Mapping[str, str], aside: Iterable[str]) -> dict[str, int]:
    """Raises UserError for a leak; otherwise says how much was compared.

    asked: the texts of validation and test questions by their ids. aside: the passages that they
    were generated from.
    """
    questions = {plain(text): name for name, text in asked.items()}
    kept_aside = frozenset(aside)
    count = 0
    for text, passage, where in used:
        count += 1
        if (words := plain(text)) and words in questions:
            raise UserError(
                f"{where} has the text of the question {questions[words]!r} that is kept for "
                f"validation or test: {text!r}; remove it there (qac collect does so for training "
                "questions), or the figures would be too good"
            )
        if passage in kept_aside:
            raise UserError(
                f"{where} has a query of the passage {passage!r}, whose questions are kept for "
                f"validation or test: {text!r}; make contexts of the training passages only (qac "
                "split --part train)"
            )
    return {"texts": count, "questions": len(questions), "passages": len(kept_aside)}
