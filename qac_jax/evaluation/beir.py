"""Collections in BEIR's layout, one or a folder of many, evaluated with any search engine.

def searcher(collection):               # indexes collection.path's corpus
    return search                       # search(queries, k) -> run

results = evaluate_folder("data/beir", searcher)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.evaluation import benchmarks
from qac_jax.evaluation.benchmarks import CQADUPSTACK, FORUMS, MSMARCO, Protocol
from qac_jax.evaluation.results import Result
from qac_jax.formats.files import find
from qac_jax.formats.judgements import by_query, judgements_file, read_judgements
from qac_jax.formats.queries import Query, read_queries
from qac_jax.formats.runs import Ranking, Run


@dataclasses.dataclass(frozen=True)
class Collection:
    """corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv in one folder."""

    name: str
    path: str
    split: str

    @property
    def protocol(self) -> str:
        return benchmarks.protocol_of(self.name)

    def judgements(self) -> dict[str, dict[str, int]]:
        return by_query(read_judgements(judgements_file(self.path, self.split)))

    def queries(self, judged: Mapping[str, object]) -> list[Query]:
        """The judged queries, in the file's order."""
        queries = [query for query in read_queries(self.path) if query.id in judged]
        if absent := judged.keys() - {query.id for query in queries}:
            raise UserError(
                f"{len(absent)} judged queries of {self.path} have no text in queries.jsonl, such "
                f"as {min(absent)!r}; fetch the file again or take them out of the judgements"
            )
        return queries


SearchFunction = Callable[[Sequence[Query], int], Mapping[str, Ranking]]
Searcher = Callable[[Collection], SearchFunction]


def collections(folder: str | os.PathLike[str], split: str = "") -> list[Collection]:
    """The folder's collection, or all collections in it (CQADupStack's one level deeper).

    Without `split`, MS MARCO is evaluated on its dev set as in BEIR, all others on test.
    """
    folder = os.path.abspath(os.fspath(folder))
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder; give a folder in BEIR's layout")
    name = os.path.basename(folder)
    if _is_collection(folder):
        parent = os.path.basename(os.path.dirname(folder))
        forum = benchmarks.set_name(parent) == CQADUPSTACK and name in FORUMS
        return [_collection(f"{CQADUPSTACK}/{name}" if forum else name, folder, split)]
    collections = []
    for child in _children(folder):
        path = os.path.join(folder, child)
        if _is_collection(path):
            below = benchmarks.set_name(name) == CQADUPSTACK
            collections.append(
                _collection(f"{CQADUPSTACK}/{child}" if below else child, path, split)
            )
        elif benchmarks.set_name(child) == CQADUPSTACK:
            collections += [
                _collection(f"{CQADUPSTACK}/{forum}", os.path.join(path, forum), split)
                for forum in _children(path)
                if _is_collection(os.path.join(path, forum))
            ]
    if not collections:
        raise UserError(
            f"{folder} holds no collection; expected corpus.jsonl, queries.jsonl and qrels/ in it "
            f"or in its folders"
        )
    return collections


def evaluate_collection(
    collection: Collection, search: SearchFunction, rules: Protocol | None = None, depth: int = 0
) -> tuple[Result, Run]:
    """Searches and evaluates one collection (`depth` passages a query): metrics and run."""
    rules = rules or benchmarks.protocol(collection.protocol)
    if depth:
        rules = dataclasses.replace(rules, depth=depth)
    judgements = collection.judgements()
    # One more, so that `depth` passages remain when a query retrieves itself.
    wanted = rules.depth if rules.self_hits else rules.depth + 1
    run = dict(search(collection.queries(judgements), wanted))
    if not rules.self_hits:
        run = benchmarks.without_self_hits(run)
    run = {query: ranking.top(rules.depth) for query, ranking in run.items()}
    return benchmarks.judge(collection.name, run, judgements, rules), run


def evaluate_folder(
    folder: str | os.PathLike[str],
    searcher: Searcher,
    *,
    split: str = "",
    rules: Protocol | None = None,
    depth: int = 0,
    keep: Callable[[Collection, Run], None] | None = None,
) -> list[Result]:
    """All collections of a folder, one after the other; `keep` is called with each run."""
    results = []
    for collection in collections(folder, split):
        outcome, run = evaluate_collection(collection, searcher(collection), rules, depth)
        if keep is not None:
            keep(collection, run)
        results.append(outcome)
        figures = ", ".join(f"{m} {v:.4f}" for m, v in list(outcome.mean.items())[:2])
        progress.say(f"{collection.name}: {figures} ({outcome.queries:,} queries)")
    return with_forums_together(results)


def with_forums_together(results: Sequence[Result]) -> list[Result]:
    """Adds CQADupStack if all twelve forums are there; logs which of them are missing."""
    forums = [r for r in results if r.name.startswith(f"{CQADUPSTACK}/")]
    complete = list(results)
    if forums:
        absent = sorted(set(FORUMS) - {r.name.split("/")[1] for r in forums})
        if absent:
            progress.say(
                f"CQADupStack has no value: it is the mean of twelve forums, and "
                f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"
            )
        else:
            complete.append(benchmarks.forums_together(forums))
    return complete


def _collection(name: str, path: str, split: str) -> Collection:
    default = "dev" if benchmarks.set_name(name) == MSMARCO else "test"
    return Collection(name, path, split or default)


def _is_collection(path: str) -> bool:
    return bool(find(path, "corpus.jsonl")) and os.path.isdir(os.path.join(path, "qrels"))


def _children(folder: str) -> list[str]:
    return sorted(n for n in os.listdir(folder) if os.path.isdir(os.path.join(folder, n)))
