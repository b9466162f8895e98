"""Pair functions of fine-tuning: queries with judged passages, for dual and cross encoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.pairs import Example, Lengths, Record
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import DataError


def triples(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 16,
    rotate_positives: bool = True,
    shuffle_negatives: bool = True,
    title_types: bool = False,
    teacher: bool = False,
) -> Example:
    """A query, one positive and n_passages - 1 negatives (Tevatron's sampling).

    The positive rotates with the epoch. Negatives are put in an order that belongs to the example
    and taken in windows that move on by their number each epoch, so that epochs see different
    ones; where there are too few, they are drawn with replacement.

    `title_types` treats `title [SEP] body` as a pair: cut by turns from the longer, with token
    types (RocketQA and PAIR). `teacher` adds the stored scores of the passages.
    """
    positives, negatives = record["positives"], record["negatives"]
    place = (rng.seed + rng.index + rng.epoch) % len(positives) if rotate_positives else 0
    chosen = _window(len(negatives), n_passages - 1, rng, shuffle_negatives)
    passages = [positives[place], *(negatives[i] for i in chosen)]
    limit = lengths["passages"]
    example: Example = {"query": form.one(record["query"], lengths["query"], rng)}
    if title_types:
        both = [title_and_body(ids, form, limit) for ids in passages]
        example["passages"] = [ids for ids, _ in both]
        example["passages_types"] = [types for _, types in both]
    else:
        example["passages"] = [form.one(ids, limit, rng) for ids in passages]
    if teacher:
        scores = record["positives_scores"][place], *record["negatives_scores"][chosen]
        example["scores"] = np.array(scores, np.float32)
    return example


def cross_encoder(
    record: Record,
    rng: np.random.Generator,
    *,
    form: Form,
    lengths: Lengths,
    truncation: str = "pop_longer",
) -> Example:
    """A query and a passage in one sequence with token types, and whether it is relevant."""
    ids, types = form.two(record["query"], record["passage"], lengths["pair"], truncation)
    return {"pair": ids, "pair_types": types, "label": np.int32(record["label"][0])}


def cross_encoder_group(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 8,
    truncation: str = "pop_longer",
) -> Example:
    """A query with one positive and its negatives, each in one sequence (localised loss)."""
    positives, negatives = record["positives"], record["negatives"]
    place = (rng.seed + rng.index + rng.epoch) % len(positives)
    chosen = _window(len(negatives), n_passages - 1, rng, True)
    passages = [positives[place], *(negatives[i] for i in chosen)]
    both = [form.two(record["query"], ids, lengths["pairs"], truncation) for ids in passages]
    return {"pairs": [ids for ids, _ in both], "pairs_types": [types for _, types in both]}


def _window(available: int, wanted: int, rng: ExampleRng, shuffle: bool) -> Sequence[int]:
    """The numbers of this epoch's negatives."""
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


def title_and_body(ids: np.ndarray, form: Form, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """`title [SEP] body` as two segments with token types: no title holds the separator."""
    places = np.flatnonzero(ids == form.between[0]) if form.between else np.empty(0, np.int64)
    if not places.size:
        return form.two(ids[:0], ids, limit)
    return form.two(ids[: places[0]], ids[places[0] + 1 :], limit)
