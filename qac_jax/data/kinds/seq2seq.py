"""An input text and one of its targets, for training a generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.drawing import any_text
from qac_jax.data.form import Form
from qac_jax.data.kind import DocumentKind, Example, Feature, Lengths, Record, Stored


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentContexts, DocumentTexts


def seq2seq(
    record: Record, rng: np.random.Generator, *, form: Form, lengths: Lengths, targets: int = 0
) -> Example:
    """An input text and one of its targets at random (of the first `targets`; 0: of all)."""
    return {
        "inputs": form.one(record["inputs"], lengths["inputs"], rng),
        "targets": form.one(any_text(record, "targets", rng, targets), lengths["targets"], rng),
    }


def records(texts: DocumentTexts, documents: Sequence[DocumentContexts]) -> Iterator[list[Record]]:
    """A passage and all of its targets; one without any is left out."""
    for body, targets_of in zip(texts.passages(documents), texts.contexts(documents), strict=True):
        yield [
            {"inputs": ids, "targets": targets}
            for ids, targets in zip(body, targets_of, strict=True)
            if texts.has(targets, "passages without targets")
        ]


def of_pairs(texts: DocumentTexts, pairs: Sequence[Record]) -> Iterator[Record]:
    """Records {"before", "text", "after", "targets"}; only the text is truncated."""
    before, text, after = (
        texts.tokenizer.encode_batch([pair[part] for pair in pairs])
        for part in ("before", "text", "after")
    )
    answers = iter(texts.tokenizer.encode_batch([t for pair in pairs for t in pair["targets"]]))
    for number, pair in enumerate(pairs):
        targets = [ids for ids in (next(answers) for _ in pair["targets"]) if ids]
        room = texts.building.texts.input_tokens or len(text[number])
        room = max(0, room - len(before[number]) - len(after[number]))
        inputs = [*before[number], *text[number][:room], *after[number]]
        if texts.has(inputs and targets, "pairs without tokens"):
            yield {"inputs": inputs, "targets": targets}


KIND = DocumentKind(
    name="seq2seq",
    function=seq2seq,
    features=lambda settings: {"inputs": Feature(length=192), "targets": Feature(length=64)},
    needs=lambda settings: ("inputs", "targets"),
    stored=lambda building: Stored(("inputs",), ("targets",)),
    records=records,
    of_pairs=of_pairs,
    asks=True,
    crop="right",
)
