"""Queries with judged passages, from wherever they come: what fine-tuning records are made of.

Positives come from queries and judgements, from generated queries (whose positive is the passage
they were made of), or from the negatives' file itself; negatives from MS MARCO's triples,
sentence-transformers' hard negatives, a TREC run, or an artefact of kind "negatives" with records
{"_id": query, "negatives": [passage, …]} and optionally "query", "positives", "positives_scores",
"negatives_scores".
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax import artifacts
from qac_jax.errors import DataError, UserError
from qac_jax.text.bad_lines import BadLines, BadRecord
from qac_jax.text.files import Piece, expand, open_bytes, text_lines
from qac_jax.text.identities import IdSet
from qac_jax.text.judgements import by_query, read_judgements
from qac_jax.text.negatives import read_hard_negatives, read_triples
from qac_jax.text.queries import read_queries
from qac_jax.text.records import Records, write_records
from qac_jax.text.training_lines import read_training_lines


NEGATIVES = "negatives"  # the kind of an artefact of negatives


@dataclasses.dataclass(frozen=True)
class Judged:
    """A query, its positives and negatives: numbers of passage records, or passages themselves."""

    query: str
    positives: tuple[Any, ...]
    negatives: tuple[Any, ...]
    positives_scores: tuple[float, ...] = ()
    negatives_scores: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which negatives are kept: of the first `depth` of a ranking, `keep` at random."""

    depth: int = 200
    keep: int = 128
    random: int = 0  # so many uniformly random passages beside them
    seed: int = 42


@dataclasses.dataclass(frozen=True)
class _Line:
    """What a source of negatives says about a query, in ids."""

    negatives: Sequence[str]
    query: str = ""
    positives: Sequence[str] = ()
    positives_scores: Sequence[float] = ()
    negatives_scores: Sequence[float] = ()


def generated_id(passage: str, number: int) -> str:
    """The query id of a generated query, in runs and files of negatives."""
    return f"{passage}#q{number}"


def from_training_lines(path: str, format: str, bad: BadLines) -> Iterator[Judged]:
    """Tevatron's or RocketQA's training files, which hold the texts."""
    for line in read_training_lines(path, format, bad=bad):
        if line.positives:
            yield Judged(line.query, line.positives, line.negatives)
        else:
            bad.leave_out("questions without a positive passage")


def from_generated(
    passages: Records,
    contexts: Iterator[tuple[int, Sequence[Mapping[str, Any]]]],
    negatives: str,
    choice: Choice,
    bad: BadLines,
) -> Iterator[Judged]:
    """Generated queries stand in for training queries."""
    lines = _negatives(negatives, {}, choice, bad)
    draw = _Drawer(passages, choice, bad)
    for number, given in contexts:
        name = passages[number]["_id"]
        for place, context in enumerate(given):
            query_id = generated_id(name, place)
            line = lines.get(query_id, _Line(()))
            yield draw(query_id, context["text"], {name: number}, line)


def from_queries(
    passages: Records, queries: str, qrels: str, negatives: str, choice: Choice, bad: BadLines
) -> Iterator[Judged]:
    """Queries with judgements, or with the positives that stand in the source of negatives."""
    texts = {query.id: query.text for query in read_queries(queries, bad=bad)} if queries else {}
    judged: dict[str, dict[str, int]] = {}
    if qrels:
        known: Any = IdSet(passages.ids())
        judged = by_query(read_judgements(qrels, queries=texts, passages=known, bad=bad))
    lines = _negatives(negatives, judged, choice, bad)
    draw = _Drawer(passages, choice, bad)
    # Where there are negatives, only queries that have some are of use (the notes, D.1).
    wanted = [q for q in (judged or lines) if not negatives or q in lines]
    if missing := len(judged or lines) - len(wanted):
        bad.leave_out("queries without negatives", missing)
    for query_id in wanted:
        line = lines.get(query_id, _Line(()))
        text = line.query or texts.get(query_id, "")
        grades = judged.get(query_id) or dict.fromkeys(line.positives, 1)
        positives = {name: -1 for name, grade in grades.items() if grade > 0}
        if not text:
            bad.leave_out("queries without text")
        elif not positives:
            bad.leave_out("queries without a positive passage")
        else:
            yield draw(query_id, text, positives, line)


class _Drawer:
    """Turns ids into numbers, and draws the negatives that are kept."""

    def __init__(self, passages: Records, choice: Choice, bad: BadLines):
        self._passages, self._choice, self._bad = passages, choice, bad

    def __call__(
        self, query_id: str, text: str, positives: Mapping[str, int], line: _Line
    ) -> Judged:
        own = dict(positives)
        unknown = [name for name, number in own.items() if number < 0]
        own.update(self._numbers(unknown, "positives that are not among the passages"))
        numbers = self._numbers(
            [name for name in line.negatives if name not in own],
            "negatives that are not among the passages",
        )
        scores = dict(zip(line.negatives, line.negatives_scores, strict=False))
        positive_scores = dict(zip(line.positives, line.positives_scores, strict=False))
        rng = random.Random(f"{self._choice.seed} {query_id}")
        found = list(numbers.items())
        rng.shuffle(found)
        found = found[: self._choice.keep]
        taken = {*own.values(), *numbers.values()}
        extra = _others(len(self._passages), self._choice.random, taken, rng)
        kept = [(name, number) for name, number in own.items() if number >= 0]
        return Judged(
            text,
            tuple(number for _, number in kept),
            tuple(number for _, number in found) + extra,
            tuple(positive_scores.get(name, 0.0) for name, _ in kept),
            tuple(scores.get(name, 0.0) for name, _ in found) + (0.0,) * len(extra),
        )

    def _numbers(self, names: Sequence[str], missing: str) -> dict[str, int]:
        places = zip(names, self._passages.positions(names), strict=True)
        found = {name: place for name, place in places if place is not None}
        if len(found) < len(set(names)):
            self._bad.leave_out(missing, len(set(names)) - len(found))
        return found


def _others(count: int, wanted: int, taken: set[int], rng: random.Random) -> tuple[int, ...]:
    """Uniformly random passage numbers that are not taken."""
    wanted = min(wanted, count - len(taken))
    found: dict[int, None] = {}
    while len(found) < wanted:
        number = rng.randrange(count)
        if number not in taken:
            found[number] = None
    return tuple(found)


def _negatives(
    path: str, judged: Mapping[str, Mapping[str, int]], choice: Choice, bad: BadLines
) -> dict[str, _Line]:
    """What the source of negatives says, by query id."""
    if not path:
        return {}
    if os.path.exists(os.path.join(path, artifacts.COMMIT)):
        records = Records(artifacts.load(path, kind=NEGATIVES))
        return {record["_id"]: _from_record(record) for record in records}
    files = expand(path, (".jsonl", ".tsv", ".txt", ".trec", ".run", ".2"))
    format = _detect(files[0])
    if format == "hard":
        hard = read_hard_negatives(path, bad=bad)
        return {n.query: _Line(n.negatives, positives=n.positives) for n in hard}
    if format == "triples":
        triples = read_triples(path, keep=choice.keep, seed=choice.seed, bad=bad)
        return {n.query: _Line(n.negatives, positives=n.positives) for n in triples}
    return {
        query: _Line([p for p in ranked if judged.get(query, {}).get(p, 0) <= 0])
        for query, ranked in _read_run(files, choice.depth, judged, bad).items()
    }


def _from_record(record: Mapping[str, Any]) -> _Line:
    return _Line(
        record["negatives"],
        record.get("query", ""),
        record.get("positives", ()),
        record.get("positives_scores", ()),
        record.get("negatives_scores", ()),
    )


def _detect(file: str) -> str:
    """Which format a file of negatives has, by its first line."""
    with open_bytes(file) as stream:
        first = stream.readline().decode(errors="replace").strip()
    if first.startswith("{"):
        return "hard"
    columns = len(first.split())
    formats = {3: "triples", 6: "run"}
    if columns not in formats:
        raise DataError(
            f"negatives of an unknown format ({columns} columns); expected 3 (query, positive, "
            f"negative), a TREC run of 6, or JSON lines",
            file=file,
            line=1,
        )
    return formats[columns]


def _read_run(
    files: Sequence[str], depth: int, judged: Mapping[str, Mapping[str, int]], bad: BadLines
) -> dict[str, list[str]]:
    """query -> its first `depth` passages by rank that are not judged relevant."""
    ranked: dict[str, list[tuple[float, str]]] = {}
    for file in files:
        for line in text_lines(Piece(file), bad):
            fields = line.text.split()
            try:
                if len(fields) != 6:
                    raise BadRecord(f"{len(fields)} columns; a TREC run has 6")
                query, _, passage, rank, _, _ = fields
                place = float(rank)
            except ValueError:
                bad.add(f"the rank {rank!r} is not a number", line.place)
                continue
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if judged.get(query, {}).get(passage, 0) <= 0:
                ranked.setdefault(query, []).append((place, passage))
    return {query: [p for _, p in sorted(found)[:depth]] for query, found in ranked.items()}


def numbered(
    passages: Records, contexts: Records
) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
    """(number of the passage, its contexts)."""
    places = passages.positions(contexts.ids())
    for place, record in zip(places, contexts, strict=True):
        if place is None:
            raise UserError(
                f"the contexts of {record['_id']!r} belong to no passage; give the passages that "
                f"they were made of"
            )
        yield place, record["contexts"]


def as_contexts(passages: Records, queries: str, qrels: str, folder: str, bad: BadLines) -> Records:
    """Judged queries as the contexts of their passages, written to an artefact in `folder`."""
    texts = {query.id: query.text for query in read_queries(queries, bad=bad)}
    known: Any = IdSet(passages.ids())
    found: dict[str, list[dict[str, Any]]] = {}
    for judgement in read_judgements(qrels, queries=texts, passages=known, bad=bad):
        if judgement.grade > 0:
            context = {"text": texts[judgement.query], "origin": "query", "score": None}
            found.setdefault(judgement.passage, []).append(context)
    with artifacts.create(folder, kind="contexts", replace=True) as writer:
        records = ({"_id": name, "contexts": contexts} for name, contexts in found.items())
        write_records(writer, records, "contexts")
    return Records(artifacts.load(folder))
