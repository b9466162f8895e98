"""How related are contexts to their passages? Estimates of what humans judge, and their votes.

Each passage is paired with contexts of several sorts: a generated query, another passage of its
document. If a context is about its passage, BM25 ranks the passage high for it, an encoder gives
the two similar vectors, and a cross-encoder a high score. All sorts are measured on the same
passages, so that their differences can be tested pair by pair.
"""

from __future__ import annotations

import csv
import itertools
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.data.examples import Examples
from qac_jax.data.kinds.mixed import CONTEXTS
from qac_jax.errors import DataError, UserError
from qac_jax.evaluation.results import Result
from qac_jax.formats.records import Records
from qac_jax.retrieval import bm25, corpus
from qac_jax.text import tokenizers


QUERY, RANDOM, NEARBY = "query", "random passage", "nearby passage"
SPAN = "random span"  # coCondenser's: each example is two of them
DEPTH = 100
# As in the released code: a "random" passage is at most this many passages away.
_WINDOW = 100
# If this many passages a wanted pair have no other passage in their document, no document has two.
_ENOUGH = 20
Decode = Callable[[list[list[int]]], list[str]]
_WORD = re.compile(r"\w+")
# Last rank and name of the groups of ranks in the plot.
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


class Sample(NamedTuple):
    """Pairs that were drawn, a passage's text by its row, and the texts of all passages."""

    pairs: list[ContextPair]
    text: Callable[[int], str]
    texts: Callable[[], Iterator[str]]


def sample_of_contexts(passages: Records, contexts: Records, at_most: int, seed: int = 0) -> Sample:
    """Contexts, and other passages of the same documents."""

    def texts() -> Iterator[str]:
        return (record["text"] for record in passages)

    pairs = list(from_contexts(passages, contexts, at_most, seed))
    return Sample(pairs, lambda row: passages[row]["text"], texts)


def sample_of_examples(examples: Artifact, at_most: int, seed: int = 0) -> Sample:
    """The same of token examples, decoded."""
    read = Examples(examples)
    decode = tokenizers.load(os.fspath(examples.path / "tokenizer")).backend.decode_batch
    if "spans" in read.info["schema"]:
        spans = [_decoded(decode, record["spans"]) for record in _each(read)]
        texts = [text for document in spans for text in document]
        pairs = list(from_spans(spans, at_most, seed))
    else:
        texts, records = _passages_and_contexts(read, decode)
        pairs = list(from_examples(texts, records, at_most, seed))
    return Sample(pairs, lambda row: texts[row], lambda: iter(texts))


def _each(examples: Examples) -> Iterator[Any]:
    for first in range(0, examples.count, 1024):
        yield from examples.read(np.arange(first, min(first + 1024, examples.count)))


def _decoded(decode: Decode, of: Iterable[Iterable[int]]) -> list[str]:
    return decode([list(map(int, ids)) for ids in of])


def _passages_and_contexts(
    examples: Examples, decode: Decode
) -> tuple[list[str], list[dict[str, list[str]]]]:
    """The texts of token examples: every passage, and its contexts by feature."""
    features = [name for name in CONTEXTS.values() if name in examples.info["schema"]]
    if "passage" not in examples.info["schema"] or not features:
        raise UserError(
            f"{examples.path} holds no pairs (its task is {examples.info['task']!r}); give "
            "examples of passage_query, passage_passage, mixed or two_spans, or contexts"
        )
    texts: list[str] = []
    contexts: list[dict[str, list[str]]] = []
    for record in _each(examples):
        texts += _decoded(decode, [record["passage"]])
        contexts.append({name: _decoded(decode, record[name]) for name in features})
    return texts, contexts


def from_contexts(
    passages: Records, contexts: Records, at_most: int, seed: int = 0
) -> Iterable[ContextPair]:
    """Pairs of every sort for the same random passages: those that have contexts of all sorts.

    If every document is one passage, and so none has them all, only pairs with queries.
    """
    rng = random.Random(seed)
    rows = list(range(len(contexts)))
    rng.shuffle(rows)
    # A generator of its own: draws for longer documents do not depend on single passages.
    alone_rng = random.Random(seed)
    alone: list[ContextPair] = []
    drawn = passed = 0
    for row in rows:
        record = contexts[row]
        texts = [context["text"] for context in record["contexts"]]
        (position,) = passages.positions([record["_id"]])
        if not texts or position is None:
            continue
        near, siblings = _siblings(passages, position)
        if not siblings:
            passed += 1
            if len(alone) < at_most:
                alone.append(ContextPair(position, record["_id"], alone_rng.choice(texts), QUERY))
            if not drawn and passed == _ENOUGH * at_most:
                break
            continue
        yield ContextPair(position, record["_id"], rng.choice(texts), QUERY)
        for sort, others in ((RANDOM, siblings), (NEARBY, near)):
            other = rng.choice(others)
            yield ContextPair(position, record["_id"], passages[other]["text"], sort, other)
        drawn += 1
        if drawn == at_most:
            return
    if not drawn:
        yield from alone


def _siblings(passages: Records, position: int) -> tuple[list[int], list[int]]:
    """Rows of the adjacent passages, and of all within the window, of the same document."""
    document = passages[position]["doc"]
    around = []
    for step in (-1, 1):
        row = position + step
        while 0 <= row < len(passages) and abs(row - position) <= _WINDOW:
            if passages[row]["doc"] != document:
                break
            around.append(row)
            row += step
    return [row for row in around if abs(row - position) == 1], sorted(around)


def from_examples(
    texts: Sequence[str],
    records: Sequence[Mapping[str, Sequence[str]]],
    at_most: int,
    seed: int = 0,
) -> Iterable[ContextPair]:
    """The same of token examples: records of the features' texts, and all passages' texts.

    Of the sorts that are stored; a passage without contexts of all of them is skipped.
    """
    names = {"contexts": QUERY, "random": RANDOM, "nearby": NEARBY, "overlap": "overlapping text"}
    rng = random.Random(seed)
    rows = list(range(len(records)))
    rng.shuffle(rows)
    place_of = {text: row for row, text in enumerate(texts)}
    drawn = 0
    for row in rows:
        if not all(records[row].values()):
            continue
        for feature, contexts in records[row].items():
            context = rng.choice(contexts)
            yield ContextPair(row, str(row), context, names[feature], place_of.get(context, -1))
        drawn += 1
        if drawn == at_most:
            return


def from_spans(
    documents: Sequence[Sequence[str]], at_most: int, seed: int = 0
) -> Iterator[ContextPair]:
    """Two different spans of a document, drawn as in training: every document equally often."""
    rng = random.Random(seed)
    starts = list(itertools.accumulate((len(spans) for spans in documents), initial=0))
    order: list[int] = []
    for number in range(at_most if documents else 0):
        if not order:
            order = rng.sample(range(len(documents)), len(documents))
        document = order.pop()
        first, second = rng.sample(range(len(documents[document])), 2)
        row, other = starts[document] + first, starts[document] + second
        yield ContextPair(row, str(number), documents[document][second], SPAN, other)


def lexical(texts: Iterable[str], pairs: Sequence[ContextPair]) -> list[int | None]:
    """BM25's rank of each pair's passage for its context; None beyond DEPTH.

    If the context is itself a passage, it is taken out of the ranking.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bm25")
        with artifacts.create(path, kind=bm25.KIND, schema=1, key="", stage="evaluate") as out:
            out.count = bm25.write(out, texts, bm25.Analyzer(), bm25.PRESETS["anserini"])
            corpus.write_ids(out, map(str, range(out.count)))
        index = bm25.Bm25(artifacts.load(path))
        _, rows = index.find([pair.context for pair in pairs], min(DEPTH + 1, len(index)))
    ranks: list[int | None] = []
    for pair, ranking in zip(pairs, rows, strict=True):
        others = ranking[ranking != pair.itself][:DEPTH]
        positions = np.flatnonzero(others == pair.passage)
        ranks.append(int(positions[0]) + 1 if len(positions) else None)
    return ranks


def measured(
    pairs: Sequence[ContextPair],
    ranks: Sequence[int | None],
    cosine: Sequence[float] | np.ndarray = (),
    odds: Sequence[float] | np.ndarray = (),
    copies: Sequence[float] = (),
) -> list[Result]:
    """Metrics of every sort, pair by pair: from BM25's ranks, cosines of an encoder's vectors, a
    cross-encoder's probabilities (`odds`) and shares of copied words."""
    by_sort: dict[str, dict[str, dict[str, float]]] = {}
    for number, (pair, rank) in enumerate(zip(pairs, ranks, strict=True)):
        values = {
            "bm25 mrr": 1.0 / rank if rank else 0.0,
            "bm25 hit@1": float(rank == 1),
            "bm25 hit@10": float(rank is not None and rank <= 10),
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
    """The share of the context's word trigrams that occur in the passage."""
    trigrams = _trigrams(context)
    return len(trigrams & _trigrams(passage)) / len(trigrams) if trigrams else 0.0


def _trigrams(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def cosines(
    encode: Callable[[Sequence[str], str], np.ndarray],
    pairs: Sequence[ContextPair],
    text: Callable[[int], str],
) -> np.ndarray:
    """The cosine of passage and context of each pair; `encode(texts, side)` gives vectors."""
    rows = list(dict.fromkeys(pair.passage for pair in pairs))
    number_of = {row: number for number, row in enumerate(rows)}
    passages = _unit(encode([text(row) for row in rows], "passage"))
    cosine = np.zeros(len(pairs), np.float32)
    for side, wanted in (("query", True), ("passage", False)):
        numbers = [n for n, pair in enumerate(pairs) if (pair.sort == QUERY) == wanted]
        if numbers:
            vectors = _unit(encode([pairs[n].context for n in numbers], side))
            theirs = passages[[number_of[pairs[n].passage] for n in numbers]]
            cosine[numbers] = np.sum(vectors * theirs, axis=1)
    return cosine


def groups(
    pairs: Sequence[ContextPair], ranks: Sequence[int | None]
) -> dict[str, dict[str, float]]:
    """Sort -> group of ranks -> share of its pairs."""
    counts: dict[str, dict[str, float]] = {}
    for pair, rank in zip(pairs, ranks, strict=True):
        group = counts.setdefault(pair.sort, {**{n: 0.0 for _, n in _GROUPS}, _BEYOND: 0.0})
        group[next((n for last, n in _GROUPS if rank and rank <= last), _BEYOND)] += 1
    return {
        sort: {name: count / sum(group.values()) for name, count in group.items()}
        for sort, group in counts.items()
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


SHEET = ("number", "first", "second", "vote")
KEY = ("number", "sort", "name")
RATE = "highly related"
_YES, _NO = ("1", "yes", "y", "true"), ("0", "no", "n", "false")


class Item(NamedTuple):
    """Two texts to judge together, and their source, which judges do not see."""

    first: str
    second: str
    sort: str
    name: str = ""


def write_sheet(sheet: IO[str], key: IO[str], items: Sequence[Item], seed: int = 0) -> None:
    """The blind sheet and its key, shuffled."""
    order = list(items)
    random.Random(seed).shuffle(order)
    sheet_writer, key_writer = csv.writer(sheet), csv.writer(key)
    sheet_writer.writerow(SHEET)
    key_writer.writerow(KEY)
    for number, item in enumerate(order, start=1):
        sheet_writer.writerow((number, _line(item.first), _line(item.second), ""))
        key_writer.writerow((number, item.sort, item.name))


def read_key(path: str | os.PathLike[str]) -> dict[int, str]:
    """Number -> sort."""
    return {number: row["sort"] for number, row, _ in _rows(path, ("number", "sort"))}


def read_votes(path: str | os.PathLike[str], key: Mapping[int, str]) -> dict[int, bool]:
    """One judge's filled sheet."""
    votes: dict[int, bool] = {}
    for number, row, line in _rows(path, ("number", "vote")):
        vote = (row["vote"] or "").strip().lower()
        if number not in key:
            raise DataError(f"number {number} is not in the key", file=str(path), line=line)
        if vote not in _YES + _NO:
            raise DataError(
                f"vote {row['vote']!r} is neither 1 (yes) nor 0 (no)", file=str(path), line=line
            )
        votes[number] = vote in _YES
    if missing := len(key.keys() - votes.keys()):
        raise DataError(
            f"votes on {missing} of {len(key)} numbers are missing; fill in all", file=str(path)
        )
    return votes


def rates(key: Mapping[int, str], judges: Sequence[Mapping[int, bool]]) -> dict[str, float]:
    """Sort -> share of its items for which at least half of the judges vote yes."""
    by_sort: dict[str, list[bool]] = {}
    for number, sort in key.items():
        yes = sum(votes[number] for votes in judges)
        by_sort.setdefault(sort, []).append(2 * yes >= len(judges))
    return {sort: sum(items) / len(items) for sort, items in sorted(by_sort.items())}


def counted(key: Mapping[int, str], judges: Sequence[Mapping[int, bool]]) -> list[Result]:
    """The same as results, with the share of judges that said yes to each item."""
    return [
        Result(
            sort,
            {RATE: rate},
            {
                str(number): {RATE: sum(votes[number] for votes in judges) / len(judges)}
                for number, of in key.items()
                if of == sort
            },
            sum(of == sort for of in key.values()),
        )
        for sort, rate in rates(key, judges).items()
    ]


def fleiss_kappa(judges: Sequence[Mapping[int, bool]]) -> float:
    """Agreement of judges beyond chance (Fleiss, 1971): 1 if they always agree, 0 as by chance.

    If all votes are equal, agreement by chance is complete too; kappa is 1 then.
    """
    count = len(judges)
    if count < 2:
        raise UserError("agreement needs at least 2 judges; give more --sheets")
    agreement, yes_share = 0.0, 0.0
    for number in judges[0]:
        yes = sum(votes[number] for votes in judges)
        agreement += (yes * (yes - 1) + (count - yes) * (count - yes - 1)) / (count * (count - 1))
        yes_share += yes / count
    agreement, yes_share = agreement / len(judges[0]), yes_share / len(judges[0])
    chance = yes_share**2 + (1 - yes_share) ** 2
    return 1.0 if chance == 1 else (agreement - chance) / (1 - chance)


def _rows(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> list[tuple[int, dict[str, str], int]]:
    rows = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if absent := [name for name in columns if row.get(name) is None]:
                raise DataError(
                    f"has no column {absent[0]!r}; expected a sheet or key of qac relate",
                    file=str(path),
                    line=reader.line_num,
                )
            try:
                rows.append((int(row["number"]), row, reader.line_num))
            except ValueError:
                raise DataError(
                    f"{row['number']!r} is not a valid number", file=str(path), line=reader.line_num
                ) from None
    if not rows:
        raise DataError("has no lines; expected a sheet or key of qac relate", file=str(path))
    return rows


def _line(text: str) -> str:
    return " ".join(text.split())


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
