"""Random choices of the pair functions: names by weights, texts of lists, negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import Example, Lengths, Record, Settings
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import DataError, UserError, nearest


def pick(probabilities: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the names; the weights need not sum to one."""
    left = rng.random() * sum(probabilities.values())
    chosen = ""
    for name, weight in probabilities.items():
        if weight > 0:
            chosen = name
            left -= weight
            if left < 0:
                break
    return chosen


def check_weights(what: str, weights: Mapping[str, float], valid: Sequence[str]) -> None:
    """Raises UserError for unknown names, negative weights, and weights that are all zero."""
    for name, weight in weights.items():
        if name not in valid:
            raise UserError(f"{what}: {name!r} is not known; {nearest(name, valid)}")
        if weight < 0:
            raise UserError(f"{what}: {name!r} has weight {weight}; expected 0 or more")
    if not sum(weights.values()):
        raise UserError(
            f"{what}: all weights are 0; give one above 0, such as {{{valid[0]!r}: 1.0}}"
        )


def pair(
    passage: np.ndarray, context: np.ndarray, rng: np.random.Generator, form: Form, lengths: Lengths
) -> Example:
    """A passage and its context, with special tokens and truncated."""
    return {
        "passage": form.one(passage, lengths["passage"], rng),
        "context": form.one(context, lengths["context"], rng),
    }


def any_text(record: Record, name: str, rng: np.random.Generator, first: int = 0) -> np.ndarray:
    """One of the (first) texts of a list; the passage itself if the list is empty."""
    texts = record[name]
    count = len(texts)
    if first and first < count:
        count = first
    if not count:
        return record["passage"]
    return texts[int(rng.random() * count)]


def text_of_epoch(record: Record, name: str, rng: np.random.Generator) -> np.ndarray:
    """One of the texts of a list, another one every epoch: they were drawn for that."""
    texts = record[name]
    return texts[getattr(rng, "epoch", 0) % len(texts)]


def window(available: int, wanted: int, rng: ExampleRng, shuffle: bool) -> Sequence[int]:
    """The numbers of this epoch's negatives: the next window of the example's own permutation."""
    if wanted == 0:
        return []
    if available == 0:
        raise DataError(
            f"example {rng.index} has no negatives but {wanted} are wanted; set n_passages to 1, "
            f"or tokenize again with negatives",
            file="examples artefact",
        )
    if available < wanted:
        return (rng.random(wanted) * available).astype(np.int64).tolist()
    if not shuffle:
        return list(range(wanted))
    order = rng.same_every_epoch().permutation(available)
    return order[(rng.epoch * wanted + np.arange(wanted)) % available].tolist()


def check_passages(settings: Settings) -> None:
    """Raises UserError for fewer than one passage a query."""
    if settings["n_passages"] < 1:
        raise UserError(f"n_passages is {settings['n_passages']}; expected 1 or more")
