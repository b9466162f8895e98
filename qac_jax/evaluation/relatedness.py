"""How related are contexts to their passages? BM25's ranks (QAC, appendix A).

Each passage is paired with contexts of several sorts: a generated query, another passage of its
document. If a context is about its passage, BM25 ranks the passage high for it. All sorts are
measured on the same passages, so that their differences can be tested pair by pair.
"""

import itertools
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evaluation.results import Result
from qac_jax.formats.records import Records
from qac_jax.retrieval import bm25, corpus


QUERY, RANDOM, NEARBY = "query", "random passage", "nearby passage"
DEPTH = 100
# As in the released code: a "random" passage is at most this many passages away.
_WINDOW = 100


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
        index = bm25.Bm25(artifacts.load(path))
        _, rows = index.find([pair.context for pair in pairs], min(DEPTH + 1, len(index)))
    ranks: list[int | None] = []
    for pair, ranking in zip(pairs, rows, strict=True):
        others = ranking[ranking != pair.itself][:DEPTH].tolist()
        ranks.append(others.index(pair.passage) + 1 if pair.passage in others else None)
    return ranks


def measured(pairs: Sequence[ContextPair], ranks: Sequence[int | None]) -> list[Result]:
    """Metrics of every sort, pair by pair, from BM25's ranks."""
    by_sort: dict[str, dict[str, dict[str, float]]] = {}
    for pair, rank in zip(pairs, ranks, strict=True):
        by_sort.setdefault(pair.sort, {})[pair.name] = {
            "bm25 mrr": 1.0 / rank if rank else 0.0,
            "bm25 hit@1": float(rank == 1),
            "bm25 hit@10": float(rank is not None and rank <= 10),
        }
    if not by_sort:
        raise UserError("no passage has a context of every sort; give both of the same documents")
    results = []
    for sort, of in by_sort.items():
        measures = next(iter(of.values()))
        mean = {m: float(np.mean([values[m] for values in of.values()])) for m in measures}
        results.append(Result(sort, mean, of, len(of)))
    return results
