"""How related are contexts to their passages? An estimate of what appendix A of QAC asks judges.

Each passage is paired with contexts of several sorts: a query made for it, another passage of its
document. A context that is about its passage leads back to it: BM25 ranks the passage high for it,
an encoder puts the two close together, a cross-encoder scores them high. All sorts are measured on
the same passages, so that their differences can be tested pair by pair.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation.results import Result
from qac_jax.formats.records import Records
from qac_jax.retrieval import bm25, ids


QUERY, RANDOM, NEARBY = "query", "random passage", "nearby passage"
DEPTH = 100
# As in the released code: a "random" passage is at most so many places away.
_WINDOW = 100
# Passages without another one in their document, before documents are taken for single passages.
_ENOUGH = 20
_WORD, _RUN = re.compile(r"\w+"), 3
# The places of a passage in BM25's ranking, as the plot groups them.
_GROUPS = ((1, "1"), (3, "2–3"), (10, "4–10"), (DEPTH, f"11–{DEPTH}"))
_BEYOND = f"> {DEPTH}"


class ContextPair(NamedTuple):
    """A passage and a context of some sort."""

    passage: int  # its row in the texts
    name: str  # its id
    context: str
    sort: str
    itself: int = -1  # the context's own row, where it is one of the texts

    def __repr__(self) -> str:
        return f"ContextPair({self.name}, {self.sort}, {self.context[:40]!r})"


def from_contexts(
    passages: Records, contexts: Records, at_most: int, seed: int = 0
) -> Iterable[ContextPair]:
    """Pairs of every sort for the same passages, drawn at random: those that have all sorts.

    Where documents are single passages, and so none has, the passages' queries alone.
    """
    rng = random.Random(seed)
    rows = list(range(len(contexts)))
    rng.shuffle(rows)
    # Drawn apart, so that what is drawn of longer documents does not depend on single passages.
    apart = random.Random(seed)
    alone: list[ContextPair] = []
    found = passed = 0
    for row in rows:
        record = contexts[row]
        texts = [context["text"] for context in record["contexts"]]
        (place,) = passages.positions([record["_id"]])
        if not texts or place is None:
            continue
        near, siblings = _siblings(passages, place)
        if not siblings:
            passed += 1
            if len(alone) < at_most:
                alone.append(ContextPair(place, record["_id"], apart.choice(texts), QUERY))
            if not found and passed == _ENOUGH * at_most:
                break
            continue
        yield ContextPair(place, record["_id"], rng.choice(texts), QUERY)
        for sort, others in ((RANDOM, siblings), (NEARBY, near)):
            other = rng.choice(others)
            yield ContextPair(place, record["_id"], passages[other]["text"], sort, other)
        found += 1
        if found == at_most:
            return
    if not found:
        yield from alone


def _siblings(passages: Records, place: int) -> tuple[list[int], list[int]]:
    """Rows of the passages just beside one, and of all around it, of the same document."""
    document = passages[place]["doc"]
    around = []
    for step in (-1, 1):
        row = place + step
        while 0 <= row < len(passages) and abs(row - place) <= _WINDOW:
            if passages[row]["doc"] != document:
                break
            around.append(row)
            row += step
    return [row for row in around if abs(row - place) == 1], sorted(around)


def from_examples(
    texts: Sequence[str],
    records: Sequence[Mapping[str, Sequence[str]]],
    at_most: int,
    seed: int = 0,
) -> Iterable[ContextPair]:
    """The same of token examples: records of the features' texts, and all passages' texts.

    Of the sorts that are stored; a passage that lacks one of them is passed over.
    """
    names = {"contexts": QUERY, "random": RANDOM, "nearby": NEARBY, "overlap": "overlapping text"}
    rng = random.Random(seed)
    rows = list(range(len(records)))
    rng.shuffle(rows)
    place_of = {text: row for row, text in enumerate(texts)}
    found = 0
    for row in rows:
        if not all(records[row].values()):
            continue
        for feature, given in records[row].items():
            context = rng.choice(given)
            yield ContextPair(row, str(row), context, names[feature], place_of.get(context, -1))
        found += 1
        if found == at_most:
            return


def lexical(texts: Iterable[str], pairs: Sequence[ContextPair]) -> list[int | None]:
    """BM25's place of each pair's passage for its context; None beyond DEPTH.

    Where the context is one of the passages, its own place is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "bm25")
        with artifacts.create(place, kind=bm25.KIND, schema=1, key="", stage="evaluate") as out:
            out.count = bm25.write(out, texts, bm25.Analyzer(), bm25.PRESETS["anserini"])
            ids.write(out, map(str, range(out.count)))
        index = bm25.Bm25(artifacts.load(place))
        _, rows = index.find([pair.context for pair in pairs], min(DEPTH + 1, len(index)))
    found: list[int | None] = []
    for pair, ranking in zip(pairs, rows, strict=True):
        others = ranking[ranking != pair.itself][:DEPTH]
        places = np.flatnonzero(others == pair.passage)
        found.append(int(places[0]) + 1 if len(places) else None)
    return found


def measured(
    pairs: Sequence[ContextPair],
    places: Sequence[int | None],
    cosine: Sequence[float] | np.ndarray = (),
    odds: Sequence[float] | np.ndarray = (),
    copies: Sequence[float] = (),
) -> list[Result]:
    """The figures of every sort, pair by pair; `cosine` of an encoder, `odds` of a cross-encoder
    as probabilities, `copies` as `copied` counts them."""
    by_sort: dict[str, dict[str, dict[str, float]]] = {}
    for number, (pair, place) in enumerate(zip(pairs, places, strict=True)):
        values = {
            "bm25 mrr": 1.0 / place if place else 0.0,
            "bm25 hit@1": float(place == 1),
            "bm25 hit@10": float(place is not None and place <= 10),
        }
        if len(cosine):
            values["cosine"] = float(cosine[number])
        if len(odds):
            values["cross-encoder"] = float(odds[number])
        if len(copies):
            values["copied"] = copies[number]
        by_sort.setdefault(pair.sort, {})[pair.name] = values
    if not by_sort:
        raise UserError(
            "no passage has a context of every sort (a query, another passage of its document); "
            "give contexts and passages of the same documents"
        )
    return [
        Result(
            sort,
            {m: _mean(v[m] for v in of.values()) for m in next(iter(of.values()))},
            of,
            len(of),
        )  # fmt: skip
        for sort, of in by_sort.items()
    ]


def copied(context: str, passage: str) -> float:
    """The share of the context's runs of three words that stand in the passage just so."""
    said, there = _runs(context), _runs(passage)
    return sum(run in there for run in said) / len(said) if said else 0.0


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[place : place + _RUN]) for place in range(len(words) - _RUN + 1)}


def cosines(
    encode: Callable[[Sequence[str], str], np.ndarray],
    pairs: Sequence[ContextPair],
    text: Callable[[int], str],
) -> np.ndarray:
    """The cosine of passage and context of each pair; `encode(texts, side)` gives vectors."""
    rows = list(dict.fromkeys(pair.passage for pair in pairs))
    place = {row: number for number, row in enumerate(rows)}
    passages = _unit(encode([text(row) for row in rows], "passage"))
    found = np.zeros(len(pairs), np.float32)
    for side, wanted in (("query", True), ("passage", False)):
        numbers = [n for n, pair in enumerate(pairs) if (pair.sort == QUERY) == wanted]
        if numbers:
            vectors = _unit(encode([pairs[n].context for n in numbers], side))
            theirs = passages[[place[pairs[n].passage] for n in numbers]]
            found[numbers] = np.sum(vectors * theirs, axis=1)
    return found


def groups(
    pairs: Sequence[ContextPair], places: Sequence[int | None]
) -> dict[str, dict[str, float]]:
    """Sort -> group of places -> share of its pairs."""
    found: dict[str, dict[str, float]] = {}
    for pair, place in zip(pairs, places, strict=True):
        shares = found.setdefault(pair.sort, {**{n: 0.0 for _, n in _GROUPS}, _BEYOND: 0.0})
        shares[next((n for last, n in _GROUPS if place and place <= last), _BEYOND)] += 1
    return {
        sort: {name: count / sum(shares.values()) for name, count in shares.items()}
        for sort, shares in found.items()
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
