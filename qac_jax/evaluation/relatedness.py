"""How related are contexts to their passages? BM25's ranks, and human judges' votes.

QAC, appendix A. Each passage is paired with contexts of several sorts: a generated query, another
passage of its document. If a context is about its passage, BM25 ranks the passage high for it. All
sorts are measured on the same passages, so that their differences can be tested pair by pair. So
are a teacher's labels, whose sorts are the positives and negatives of the same queries.

Human judges fill in a blind sheet: a CSV of two texts a line, shuffled, without their sources;
these are in a separate key, which judges do not get. The paper calls a pair highly related if at
least 3 of 6 judges vote so: at least half of them.
"""

import csv
import itertools
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np

from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.evaluation.results import Result
from qac_jax.formats.records import Records
from qac_jax.retrieval import bm25, corpus
from qac_jax.retrieval.mining import plain


QUERY, RANDOM, NEARBY = "query", "random passage", "nearby passage"
LABELS = "positives", "negatives"
DEPTH = 100
# As in the released code: a "random" passage is at most this many passages away.
_WINDOW = 100
SHEET = ("number", "first", "second", "vote")
KEY = ("number", "sort", "name")
RATE = "highly related"
_VOTES = {"1": True, "yes": True, "0": False, "no": False}


class ContextPair(NamedTuple):
    """A passage and a context of some sort."""

    passage: int  # its row
    name: str  # its id
    context: str
    sort: str
    itself: int = -1  # the context's own row, where it is one of the passages


def drawn_pairs(
    passages: Records, contexts: Records, at_most: int, seed: int = 0
) -> Iterator[ContextPair]:
    """Pairs of every sort for the same random passages: those that have contexts of all sorts."""
    rng = random.Random(seed)
    rows = list(range(len(contexts)))
    rng.shuffle(rows)
    drawn = 0
    for row in rows:
        record = contexts[row]
        texts = [context["text"] for context in record["contexts"]]
        (position,) = passages.positions([record["_id"]])
        if not texts or position is None:
            continue
        near, siblings = _siblings(passages, position)
        if not siblings:
            continue
        yield ContextPair(position, record["_id"], rng.choice(texts), QUERY)
        for sort, others in ((RANDOM, siblings), (NEARBY, near)):
            other = rng.choice(others)
            yield ContextPair(position, record["_id"], passages[other]["text"], sort, other)
        drawn += 1
        if drawn == at_most:
            return


def labelled_pairs(
    passages: Records, labels: Records, at_most: int, seed: int = 0
) -> Iterator[ContextPair]:
    """A positive and a negative of random queries, each with its query (PAIR, Table 5)."""
    rng = random.Random(seed)
    rows, asked = list(range(len(labels))), set[str]()
    rng.shuffle(rows)
    for row in rows:
        record = labels[row]
        positions = passages.positions(rng.choice(record[side]) for side in LABELS)
        found = [position for position in positions if position is not None]
        if record["_id"] in asked or len(found) < len(LABELS):
            continue
        asked.add(record["_id"])
        for side, position in zip(LABELS, found, strict=True):
            yield ContextPair(position, record["_id"], record["query"], side)
        if len(asked) == at_most:
            return


def _siblings(passages: Records, position: int) -> tuple[list[int], list[int]]:
    """Rows of the adjacent passages, and of all within the window, of the same document."""
    document = passages[position]["doc"]

    def same(row: int) -> bool:
        return passages[row]["doc"] == document

    before = itertools.takewhile(same, range(position - 1, max(position - _WINDOW, 0) - 1, -1))
    last = min(position + _WINDOW, len(passages) - 1)
    after = itertools.takewhile(same, range(position + 1, last + 1))
    around = sorted([*before, *after])
    return [row for row in around if abs(row - position) == 1], around


def bm25_ranks(texts: Iterable[str], pairs: Sequence[ContextPair]) -> list[int | None]:
    """BM25's rank of each pair's passage for its context (no candidate); None beyond DEPTH."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bm25")
        with artifacts.create(path, kind=bm25.KIND, schema=1, key="", stage="evaluate") as out:
            out.count = bm25.write(out, texts, bm25.Analyzer(), bm25.PRESETS["anserini"])
            corpus.write_ids(out, map(str, range(out.count)))
            out.info["texts"] = []
        index = bm25.Bm25(artifacts.load(path))
        _, rows = index.find([pair.context for pair in pairs], min(DEPTH + 1, len(index)))
    ranks: list[int | None] = []
    for pair, ranking in zip(pairs, rows, strict=True):
        others = ranking[ranking != pair.itself][:DEPTH].tolist()
        ranks.append(others.index(pair.passage) + 1 if pair.passage in others else None)
    return ranks


def measured(
    pairs: Sequence[ContextPair], ranks: Sequence[int | None], passages: Records
) -> list[Result]:
    """Metrics of every sort, pair by pair: from BM25's ranks, and the share of the context's words
    that stand in the passage."""
    by_sort: dict[str, dict[str, dict[str, float]]] = {}
    for pair, rank in zip(pairs, ranks, strict=True):
        by_sort.setdefault(pair.sort, {})[pair.name] = {
            "bm25 mrr": 1.0 / rank if rank else 0.0,
            "bm25 hit@1": float(rank == 1),
            "bm25 hit@10": float(rank is not None and rank <= 10),
            "copied": _copied(pair.context, passages[pair.passage]["text"]),
        }
    if not by_sort:
        raise UserError("no passage has a context of every sort; give both of the same documents")
    results = []
    for sort, of in by_sort.items():
        measures = next(iter(of.values()))
        mean = {m: float(np.mean([values[m] for values in of.values()])) for m in measures}
        results.append(Result(sort, mean, of, len(of)))
    return results


def _copied(context: str, passage: str) -> float:
    words, there = plain(context).split(), {*plain(passage).split()}
    return sum(word in there for word in words) / max(1, len(words))


def write_sheet(
    sheet: IO[str],
    key: IO[str],
    pairs: Sequence[ContextPair],
    passages: Records,
    count: int,
    seed: int,
) -> int:
    """The blind sheet of the first `count` pairs of each sort, and its key; returns their number.

    They are shuffled, and the key has the sorts, which judges do not see.
    """
    chosen = list(pairs[: count * len({pair.sort for pair in pairs})])  # they come in turns
    random.Random(seed).shuffle(chosen)
    sheet_writer, key_writer = csv.writer(sheet), csv.writer(key)
    sheet_writer.writerow(SHEET)
    key_writer.writerow(KEY)
    for number, pair in enumerate(chosen, start=1):
        texts = passages[pair.passage]["text"], pair.context
        first, second = (" ".join(text.split()) for text in texts)
        sheet_writer.writerow((number, first, second, ""))
        key_writer.writerow((number, pair.sort, pair.name))
    return len(chosen)


def read_key(path: str | os.PathLike[str]) -> dict[str, str]:
    """Number -> sort."""
    return {row["number"]: row["sort"] for row, _ in _rows(path, KEY)}


def read_votes(path: str | os.PathLike[str], key: Mapping[str, str]) -> dict[str, bool]:
    votes: dict[str, bool] = {}
    for row, line in _rows(path, SHEET):
        vote = _VOTES.get(row["vote"].strip().lower())
        if row["number"] not in key or vote is None:
            why = f"vote {row['vote']!r} on number {row['number']}: expected 1 (yes) or 0 (no) on "
            raise DataError(f"{why}a number of the key", file=str(path), line=line)
        votes[row["number"]] = vote
    if missing := len(key.keys() - votes.keys()):
        why = f"votes on {missing} of {len(key)} numbers are missing; fill in all"
        raise DataError(why, file=str(path))
    return votes


def _rows(
    path: str | os.PathLike[str], columns: Sequence[str]
) -> Iterator[tuple[dict[str, str], int]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if any(row.get(name) is None for name in columns):
                why = f"expected {', '.join(columns)}, as in a sheet or key of qac analyse"
                raise DataError(why, file=str(path), line=reader.line_num)
            yield row, reader.line_num


def counted(key: Mapping[str, str], judges: Sequence[Mapping[str, bool]]) -> list[Result]:
    """For each sort the share of its items for which at least half of the judges vote yes, and for
    each item the share of judges."""
    results = []
    for sort in sorted(set(key.values())):
        shares = {
            number: sum(votes[number] for votes in judges) / len(judges)
            for number, of in key.items()
            if of == sort
        }
        rate = sum(share >= 0.5 for share in shares.values()) / len(shares)
        per_item = {number: {RATE: share} for number, share in shares.items()}
        results.append(Result(sort, {RATE: rate}, per_item, len(shares)))
    return results


def fleiss_kappa(judges: Sequence[Mapping[str, bool]]) -> float:
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
