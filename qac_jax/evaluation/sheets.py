"""What human judges are asked about, a few items of every sort; see `votes` for the sheet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from qac_jax.errors import UserError
from qac_jax.evaluation.relatedness import ContextPair
from qac_jax.evaluation.votes import Item
from qac_jax.formats.records import Records


def of_pairs(pairs: Sequence[ContextPair], text: Callable[[int], str]) -> Iterator[Item]:
    """Passages with their contexts; `text` gives a passage's by its row."""
    return (Item(text(p.passage), p.context, p.sort, p.name) for p in pairs)


def of_labels(labels: Records, passages: Records, seed: int) -> Iterator[Item]:
    """Queries with a passage that is said to answer them, or said not to."""
    rng = random.Random(seed)
    for record in _shuffled(labels, rng):
        if not record.get("query"):
            raise UserError("these labels hold no texts of queries; give those of qac label")
        for sort in ("positives", "negatives"):
            names = record.get(sort) or []
            if not names:
                continue
            (place,) = passages.positions([rng.choice(names)])
            if place is not None:
                yield Item(record["query"], passages[place]["text"], sort, record["_id"])


def of_titles(passages: Records, seed: int) -> Iterator[Item]:
    """Titles with a passage of theirs, and with one of another document."""
    rng = random.Random(seed)
    for record in _shuffled(passages, rng):
        other = passages[rng.randrange(len(passages))]
        if record.get("title"):
            yield Item(record["title"], record["text"], "own title", record["_id"])
            if other["doc"] != record["doc"]:
                yield Item(record["title"], other["text"], "title of another", record["_id"])


def first_of_each(items: Iterable[Item], count: int) -> list[Item]:
    """The first `count` items of each sort."""
    taken: dict[str, int] = {}
    kept = []
    for item in items:
        taken[item.sort] = taken.get(item.sort, 0) + 1
        if taken[item.sort] <= count:
            kept.append(item)
        elif min(taken.values()) > count:
            break
    return kept


def _shuffled(records: Records, rng: random.Random) -> Iterator[dict[str, Any]]:
    order = list(range(len(records)))
    rng.shuffle(order)
    return (records[number] for number in order)
