"""Similar passages with all their queries and a teacher's score of every pair (step group)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data.form import Form
from qac_jax.data.kind import (
    LENGTH,
    Building,
    DocumentKind,
    Example,
    Feature,
    Lengths,
    Record,
    Settings,
    Stored,
)
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import UserError
from qac_jax.text.tokenizers import text_of


if TYPE_CHECKING:
    from qac_jax.data.shards import DocumentTexts


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupKind(DocumentKind):
    """A kind whose records are made from groups alone, and that reads texts as judged ones."""

    def how_to_read(self, building: Building) -> dict[str, Any]:
        texts = building.texts
        return {name: getattr(texts, name) for name in ("title", "query_prompt", "passage_prompt")}

    def check_inputs(self, inputs: Collection[str], building: Building) -> None:
        del building
        if set(inputs) != {"pairs"}:
            raise UserError("--task groups reads --pairs, what qac step group made, alone")


def groups(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 32,
    n_queries: int = 128,
) -> Example:
    """Passages and queries of a group with the teacher's scores; each epoch draws anew.

    Where a group has too few of either, some repeat: a query counts twice, and a repeated passage
    is masked by a score of minus infinity.
    """
    passages, queries = record["passages"], record["queries"]
    scores = np.asarray(record["scores"], np.float32).reshape(len(queries), len(passages))
    asked = _drawn(len(queries), n_queries, rng)
    shown = _drawn(len(passages), n_passages, rng)
    chosen = scores[np.ix_(asked, shown)]
    chosen[:, len(passages) :] = -np.inf
    return {
        "query": [form.one(queries[place], lengths["query"], rng) for place in asked],
        "passages": [form.one(passages[place], lengths["passages"], rng) for place in shown],
        "scores": chosen,
    }


def _drawn(count: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """`wanted` of `count` places at random, each as often as the others, the first turn whole."""
    turns = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return np.concatenate(turns)[:wanted]


def features(settings: Settings) -> dict[str, Feature]:
    queries, passages = settings["n_queries"], settings["n_passages"]
    return {
        "query": Feature(axes=(queries, LENGTH), length=32),
        "passages": Feature(axes=(passages, LENGTH), length=144),
        "scores": Feature(axes=(queries, passages), dtype="float32"),
    }


def check(settings: Settings) -> None:
    for name, least in (("n_passages", 2), ("n_queries", 1)):
        if settings[name] < least:
            raise UserError(f"{name}={settings[name]} is too few; expected {least} or more")


def records(texts: DocumentTexts, documents: Sequence[Any]) -> Iterator[list[Record]]:
    raise AssertionError("records of groups are made of pairs")


def of_pairs(texts: DocumentTexts, together: Sequence[Record]) -> Iterator[Record]:
    """Records {"queries", "passages", "scores"} of `qac step group`."""
    how, encode = texts.building.texts, texts.tokenizer.encode_batch
    for group in together:
        passages = [
            how.passage_prompt + text_of(texts.tokenizer, passage, how.title)
            for passage in group["passages"]
        ]
        yield {
            "queries": encode([how.query_prompt + query for query in group["queries"]]),
            "passages": encode(passages),
            "scores": np.array(group["scores"], np.float32).reshape(-1),
        }


KIND = GroupKind(
    name="groups",
    function=groups,
    features=features,
    needs=lambda settings: ("queries", "passages", "scores"),
    check=check,
    stored=lambda building: Stored((), ("queries", "passages"), {"scores": "float32"}),
    records=records,
    of_pairs=of_pairs,
    title="space",
)
