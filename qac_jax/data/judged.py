"""Queries with judged passages, from any source: the input of fine-tuning records.

Positives come from queries and judgements, from generated queries (whose positive is the passage
they were made of), or from the source of negatives; negatives from MS MARCO's triples,
sentence-transformers' hard negatives, a TREC run, or an artefact of kind "negatives" with records
{"_id": query, "negatives": [passage, …]} and optionally "query", "positives", "positives_scores",
"negatives_scores".

All sources are streamed, in the order of the source of negatives.
"""

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import artifacts
from qac_jax.data.kind import Negatives
from qac_jax.errors import DataError
from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.files import LONGEST_LINE, expand, open_bytes
from qac_jax.formats.identities import IdIndex, IdSet
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries, shares
from qac_jax.formats.records import Records, write_records
from qac_jax.formats.runs import stream_run
from qac_jax.formats.training import Negatives as _Line
from qac_jax.formats.training import read_hard_negatives, read_triples


NEGATIVES = "negatives"  # the kind of an artefact of negatives

_GENERATED = "#q"
_LOST_POSITIVES = "positives that are not among the passages"
_LOST_NEGATIVES = "negatives that are not among the passages"


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """A query, its positives and negatives: numbers of passage records, or passages themselves."""

    query: str
    positives: Sequence[Any] | np.ndarray
    negatives: Sequence[Any] | np.ndarray
    positives_scores: Sequence[float] | np.ndarray = ()
    negatives_scores: Sequence[float] | np.ndarray = ()


def generated_id(passage: str, number: int) -> str:
    """The query id of a generated query, in runs and sources of negatives."""
    return f"{passage}{_GENERATED}{number}"


def generated_from(query: str) -> str:
    """The passage of a generated query's id; "" for other ids."""
    passage, _, number = query.rpartition(_GENERATED)
    return passage if number.isdigit() else ""


def from_generated(
    passages: Records,
    contexts: Records,
    negatives: str,
    chosen: Negatives,
    seed: int,
    bad: BadLines,
) -> Iterator[Judged]:
    """Generated queries in place of judged training queries."""
    draw = _Drawer(passages, chosen, seed, bad)
    numbered = ((r["_id"], number) for r in contexts for number in range(len(r["contexts"])))
    lines: Iterable[_Line] = (_Line(generated_id(*one)) for one in numbered)
    for line in _lines(negatives, {}, chosen, seed, bad) if negatives else lines:
        name, _, which = line.query_id.rpartition(_GENERATED)
        (place,) = contexts.positions([name])
        queries = () if place is None else contexts[place]["contexts"]
        if which.isdigit() and int(which) < len(queries):
            yield from draw(queries[int(which)]["text"], [name], line)
        else:
            bad.leave_out("negatives of queries that were not generated")


def from_queries(
    passages: Records,
    queries: str,
    qrels: str,
    negatives: str,
    chosen: Negatives,
    seed: int,
    bad: BadLines,
) -> Iterator[Judged]:
    """Queries with judgements, or with the positives of the source of negatives."""
    texts = {query.id: query.text for query in read_queries(queries, bad=bad)} if queries else {}
    judged: dict[str, dict[str, int]] = {}
    if qrels:
        known: Any = IdSet(passages.ids())
        judged = by_query(read_judgements(qrels, queries=texts, passages=known, bad=bad))
    draw = _Drawer(passages, chosen, seed, bad)
    lines: Iterable[_Line] = map(_Line, judged)
    if negatives:  # then queries without negatives are left out, as in Tevatron's scripts
        lines = _lines(negatives, judged, chosen, seed, bad)
    judged_lines = 0
    for line in lines:
        if judged and line.query_id not in judged:
            bad.leave_out("queries without judgements")
            continue
        judged_lines += 1
        text = line.query or texts.get(line.query_id, "")
        grades = judged.get(line.query_id) or dict.fromkeys(line.positives, 1)
        if text:
            yield from draw(text, [name for name, grade in grades.items() if grade > 0], line)
        else:
            bad.leave_out("queries without text")
    if judged_lines < len(judged):
        bad.leave_out("queries without negatives", len(judged) - judged_lines)


def as_contexts(passages: Records, queries: str, qrels: str, folder: str, bad: BadLines) -> Records:
    """Judged queries as contexts of their positive passages, an artefact in `folder`."""
    texts = {query.id: query.text for query in read_queries(queries, bad=bad)}
    known: Any = IdSet(passages.ids())
    contexts_of: dict[str, list[dict[str, Any]]] = {}
    for judgement in read_judgements(qrels, queries=texts, passages=known, bad=bad):
        if judgement.grade > 0:
            context = {"text": texts[judgement.query], "origin": "query", "score": None}
            contexts_of.setdefault(judgement.passage, []).append(context)
    with artifacts.create(folder, kind="contexts", replace=True) as writer:
        records = ({"_id": name, "contexts": contexts} for name, contexts in contexts_of.items())
        write_records(writer, records, "contexts")
    return Records(artifacts.load(folder))


class _Drawer:
    """Turns ids into passage numbers, and draws negatives."""

    def __init__(self, passages: Records, chosen: Negatives, seed: int, bad: BadLines):
        self._passages, self._bad = passages, bad
        self._chosen, self._seed = chosen, seed
        self._index = IdIndex(passages.ids())

    def __call__(self, text: str, positives: Sequence[str], line: _Line) -> Iterator[Judged]:
        """The query with its positives and drawn negatives; nothing without a positive."""
        scores = dict(zip(line.negatives, line.negatives_scores, strict=False))
        scores |= dict(zip(line.positives, line.positives_scores, strict=False))
        if self._chosen.scores:
            scores = dict(zip(scores, shares([*scores.values()]).tolist(), strict=True))
            known = [name for name in positives if name in scores]
            if lost := len(positives) - len(known):
                self._bad.leave_out("positives without a score", lost)
            positives = known
        own = self._numbers(positives, _LOST_POSITIVES)
        if not own:
            self._bad.leave_out("queries without a positive passage")
            return
        negatives = self._numbers([n for n in line.negatives if n not in own], _LOST_NEGATIVES)
        rng = random.Random(f"{self._seed} {line.query_id}")
        names = list(negatives)
        rng.shuffle(names)
        names = names[: self._chosen.keep]
        others = self._others({*own.values(), *negatives.values()}, rng)
        yield Judged(
            text,
            np.array(list(own.values()), np.int32),
            np.array([negatives[name] for name in names] + others, np.int32),
            np.array([scores.get(name, 0.0) for name in own], np.float32),
            np.array([scores.get(name, 0.0) for name in names] + [0.0] * len(others), np.float32),
        )

    def _numbers(self, names: Iterable[str], lost: str) -> dict[str, int]:
        numbers = {}
        for name in dict.fromkeys(names):
            places = self._index.candidates(name)
            if len(places) > 1:  # a hash collision: compare the ids themselves
                places = [place for place in places if self._passages[place]["_id"] == name]
            if places:
                numbers[name] = places[0]
            else:
                self._bad.leave_out(lost)
        return numbers

    def _others(self, taken: set[int], rng: random.Random) -> list[int]:
        count = len(self._passages)
        wanted = min(self._chosen.random_negatives, count - len(taken))
        drawn: dict[int, None] = {}
        while len(drawn) < wanted:
            number = rng.randrange(count)
            if number not in taken:
                drawn[number] = None
        return list(drawn)


def _lines(
    path: str, judged: Mapping[str, Mapping[str, int]], chosen: Negatives, seed: int, bad: BadLines
) -> Iterator[_Line]:
    ours = artifacts.peek(path)
    if ours is not None and ours["kind"] != "run":
        for record in Records(artifacts.load(path, kind=NEGATIVES)):
            known = {name: record[name] for name in _Line._fields if name in record}
            yield _Line(record["_id"], **known)
        return
    files = expand(path, (".jsonl", ".tsv", ".txt", ".trec", ".run", ".2"))
    with open_bytes(files[0]) as stream:
        first = stream.readline(LONGEST_LINE).decode(errors="replace").strip()
    columns = len(first.split())
    if columns == 6:
        yield from _ranked(files, chosen.depth, judged, bad)
        return
    if first.startswith("{"):
        read = read_hard_negatives(path, bad=bad)
    elif columns == 3:
        read = read_triples(path, keep=chosen.keep, seed=seed, bad=bad)
    else:
        raise DataError(
            f"negatives of an unknown format ({columns} columns); expected 3 (query, positive, "
            f"negative), a TREC run of 6, or JSON lines",
            file=files[0],
            line=1,
        )
    yield from read


def _ranked(
    files: Sequence[str], depth: int, judged: Mapping[str, Mapping[str, int]], bad: BadLines
) -> Iterator[_Line]:
    """The relevant passages in each ranking of a run, and the first `depth` of the others."""
    for query, ranking in stream_run(files, bad):
        scores = dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))
        relevant = judged.get(query, {})
        hits = [name for name in ranking.ids if relevant.get(name, 0) > 0]
        others = [name for name in ranking.ids if relevant.get(name, 0) <= 0][:depth]
        of_hits, of_others = ([scores[name] for name in names] for names in (hits, others))
        yield _Line(query, hits, others, "", of_hits, of_others)
