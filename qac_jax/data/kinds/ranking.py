"""The kinds of fine-tuning: queries with judged passages, and groups with a teacher's scores."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qac_jax.data.form import PAIR_TRUNCATIONS, Form, check_name, title_and_body
from qac_jax.data.kind import (
    LENGTH,
    Building,
    DocumentKind,
    Example,
    Feature,
    JudgedKind,
    Lengths,
    Record,
    Settings,
    Stored,
)
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import DataError, UserError
from qac_jax.formats.queries import with_score
from qac_jax.text.tokenizers import text_of


if TYPE_CHECKING:
    from qac_jax.data.judged import Judged
    from qac_jax.data.shards import DocumentTexts, JudgedTexts


def _drawn_passages(record: Record, rng: ExampleRng, count: int) -> tuple[int, list[int]]:
    """The number of one positive, and those of count - 1 negatives (Tevatron's sampling).

    The positive rotates with the epoch. Negatives are permuted, with one permutation for each
    example, and each epoch takes the next window of them, so that epochs get different ones; where
    there are too few, they are drawn with replacement.
    """
    place = (rng.seed + rng.index + rng.epoch) % len(record["positives"])
    available, wanted = len(record["negatives"]), count - 1
    if wanted and not available:
        raise DataError(
            f"example {rng.index} has no negatives but {wanted} are wanted; set n_passages to 1, "
            f"or tokenize again with negatives",
            file="examples artefact",
        )
    if available < wanted:
        return place, (rng.random(wanted) * available).astype(np.int64).tolist()
    if not wanted:
        return place, []
    order = rng.same_every_epoch().permutation(available)
    return place, order[(rng.epoch * wanted + np.arange(wanted)) % available].tolist()


def _at_least(settings: Settings, **least: int) -> None:
    for name, number in least.items():
        if settings[name] < number:
            raise UserError(f"{name} is {settings[name]}; expected {number} or more")


def triples(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 16,
    title_types: bool = False,
    teacher: bool = False,
) -> Example:
    """A query, one positive and n_passages - 1 negatives.

    `title_types` treats `title [SEP] body` as a pair: truncated by turns from the longer, with
    token types (RocketQA and PAIR). `teacher` adds the stored scores of the passages.
    """
    place, chosen = _drawn_passages(record, rng, n_passages)
    passages = [record["positives"][place], *(record["negatives"][i] for i in chosen)]
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


def _features_of_triples(settings: Settings) -> dict[str, Feature]:
    count = settings["n_passages"]
    result = {"query": Feature(length=32), "passages": Feature(axes=(count, LENGTH), length=144)}
    if settings["title_types"]:
        result["passages_types"] = Feature(axes=(count, LENGTH), like="passages")
    if settings["teacher"]:
        result["scores"] = Feature(axes=(count,), dtype="float32")
    return result


SCORES = ("positives_scores", "negatives_scores")


def _stored_triples(building: Building) -> Stored:
    scores = dict.fromkeys(SCORES if building.negatives.teacher else (), "float32")
    return Stored(("query",), ("positives", "negatives"), scores)


def queries_with_passages(texts: JudgedTexts, queries: Sequence[Judged]) -> Iterator[Record]:
    scores = SCORES if texts.building.negatives.teacher else ()
    for judged, query in texts.queries(queries):
        lists = {name: texts.ids(getattr(judged, name)) for name in ("positives", "negatives")}
        yield {"query": query, **lists, **{name: getattr(judged, name) for name in scores}}


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


def judged_pairs(texts: JudgedTexts, queries: Sequence[Judged]) -> Iterator[Record]:
    """A query with each of its positives and with some of its negatives."""
    building = texts.building
    for judged, query in texts.queries(queries, lambda judged: _fewer(judged, building)):
        for label, passages, scores in (
            (1, judged.positives, judged.positives_scores),
            (0, judged.negatives, judged.negatives_scores),
        ):
            query_ids: Sequence[Sequence[int]] = [query] * len(passages)
            if building.negatives.scores:
                text = building.texts.query_prompt + judged.query
                scored = [with_score(text, share) for share in scores]
                query_ids = texts.tokenizer.encode_batch(scored)
            for ids, passage in zip(query_ids, texts.ids(passages), strict=True):
                yield {"query": ids, "passage": passage, "label": [label]}


def _fewer(judged: Judged, building: Building) -> Judged:
    rng = random.Random(f"{building.seed} {judged.query}")
    wanted = min(building.negatives.negatives_per_query, len(judged.negatives))
    places = rng.sample(range(len(judged.negatives)), wanted)
    negatives = [judged.negatives[i] for i in places]
    scores = [float(judged.negatives_scores[i]) for i in places if len(judged.negatives_scores)]
    return dataclasses.replace(judged, negatives=negatives, negatives_scores=scores)


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
    place, chosen = _drawn_passages(record, rng, n_passages)
    passages = [record["positives"][place], *(record["negatives"][i] for i in chosen)]
    both = [form.two(record["query"], ids, lengths["pairs"], truncation) for ids in passages]
    return {"pairs": [ids for ids, _ in both], "pairs_types": [types for _, types in both]}


def groups(
    record: Record,
    rng: ExampleRng,
    *,
    form: Form,
    lengths: Lengths,
    n_passages: int = 32,
    n_queries: int = 128,
) -> Example:
    """Passages and queries of a group with the scores of the teacher and of BM25, and the place of
    each query's own passage (-1: not drawn); each epoch draws anew.

    Where a group has too few of either, some repeat: a query counts twice, and a repeated passage
    is masked by a score of minus infinity.
    """
    passages, queries = record["passages"], record["queries"]
    asked = _drawn(len(queries), n_queries, rng)
    shown = _drawn(len(passages), n_passages, rng)
    scores, lexical = (
        np.asarray(record[name], np.float32).reshape(len(queries), -1)[np.ix_(asked, shown)]
        for name in ("scores", "lexical")
    )
    scores[:, len(passages) :] = -np.inf
    places = np.full(len(passages), -1, np.int32)
    places[shown[: len(passages)]] = np.arange(min(len(shown), len(passages)))
    return {
        "query": [form.one(queries[place], lengths["query"], rng) for place in asked],
        "passages": [form.one(passages[place], lengths["passages"], rng) for place in shown],
        "scores": scores,
        "lexical": lexical,
        "own": places[np.asarray(record["own"])[asked]],
    }


def _drawn(count: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """`wanted` of `count` places at random, each as often as the others, the first turn whole."""
    turns = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return np.concatenate(turns)[:wanted]


GROUP_NUMBERS = {"scores": "float32", "lexical": "float32", "own": "int32"}


def groups_of_texts(texts: DocumentTexts, together: Sequence[Record]) -> Iterator[Record]:
    """Records {"queries", "passages", "scores", "lexical", "own"} of `qac step group`."""
    how, encode = texts.building.texts, texts.tokenizer.encode_batch
    for group in together:
        passages = [
            how.passage_prompt + text_of(texts.tokenizer, passage, how.title)
            for passage in group["passages"]
        ]
        yield {
            "queries": encode([how.query_prompt + query for query in group["queries"]]),
            "passages": encode(passages),
            **{n: np.array(group[n], np.float32).reshape(-1) for n in ("scores", "lexical")},
            "own": np.array(group["own"], np.int32),
        }


TRIPLES = JudgedKind(
    name="triples",
    function=triples,
    features=_features_of_triples,
    needs=lambda settings: (
        *("query", "positives", "negatives"),
        *(SCORES if settings["teacher"] else ()),
    ),
    check=functools.partial(_at_least, n_passages=1),
    stored=_stored_triples,
    records=queries_with_passages,
    crop="right",
    title="separate",
)
CROSS_ENCODER = JudgedKind(
    name="cross_encoder",
    function=cross_encoder,
    features=lambda settings: {
        "pair": Feature(length=160),
        "pair_types": Feature(like="pair"),
        "label": Feature(axes=()),
    },
    needs=lambda settings: ("query", "passage", "label"),
    check=lambda settings: check_name("truncation", settings["truncation"], PAIR_TRUNCATIONS),
    stored=lambda building: Stored(("query", "passage"), (), {"label": "int32"}),
    records=judged_pairs,
    crop="right",
    title="space",
)
CROSS_ENCODER_GROUP = JudgedKind(
    name="cross_encoder_group",
    function=cross_encoder_group,
    features=lambda settings: {
        "pairs": Feature(axes=(settings["n_passages"], LENGTH), length=160),
        "pairs_types": Feature(axes=(settings["n_passages"], LENGTH), like="pairs"),
    },
    needs=lambda settings: ("query", "positives", "negatives"),
    check=functools.partial(_at_least, n_passages=1),
    stored=_stored_triples,
    records=queries_with_passages,
    crop="right",
    title="space",
)
GROUPS = DocumentKind(
    name="groups",
    function=groups,
    features=lambda settings: {
        "query": Feature(axes=(settings["n_queries"], LENGTH), length=32),
        "passages": Feature(axes=(settings["n_passages"], LENGTH), length=144),
        **dict.fromkeys(
            ("scores", "lexical"),
            Feature(axes=(settings["n_queries"], settings["n_passages"]), dtype="float32"),
        ),
        "own": Feature(axes=(settings["n_queries"],)),
    },
    needs=lambda settings: ("queries", "passages", *GROUP_NUMBERS),
    check=functools.partial(_at_least, n_passages=2, n_queries=1),
    stored=lambda building: Stored((), ("queries", "passages"), GROUP_NUMBERS),
    of_pairs=groups_of_texts,
    prompted=True,
    title="space",
)
