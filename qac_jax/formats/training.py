"""Training files that hold their texts: Tevatron's, RocketQA's, DPR's."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import Line, Piece, expand, text_lines
from qac_jax.formats.identities import IdSet, id_hash
from qac_jax.formats.lines import columns, json_object, string
from qac_jax.formats.registry import TRAINING


class TrainingLine(NamedTuple):
    """A question with passages. Ids are empty where a format has none (RocketQA's)."""

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...]


@dataclass(frozen=True)
class TrainingFormat:
    """A way to store training lines; the modules of `readers` list them in
    TRAINING_FORMATS."""

    suffixes: tuple[str, ...]
    read: Callable[[str, BadLines], Iterator[TrainingLine]]


def read_training_lines(
    path: str | os.PathLike[str],
    format: str = "tevatron",
    *,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[TrainingLine]:
    """All training lines of a file, folder or pattern."""
    reader = TRAINING.get(format)
    bad = BadLines(skip_bad) if bad is None else bad
    for file in expand(path, reader.suffixes):
        yield from reader.read(file, bad)


class Negatives(NamedTuple):
    """Passage ids for one query; `systems`: which system each negative comes from."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    systems: tuple[str, ...] = ()


def read_triples(
    path: str | os.PathLike[str],
    *,
    keep: int = 128,
    seed: int = 42,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[Negatives]:
    """qidpidtriples.train.full.2: query, positive, negative in lines grouped by query.

    Each query's negatives are shuffled and `keep` of them kept (128 in the released recipes, 30
    by Tevatron's default). The order depends on seed and query alone.
    """
    bad = BadLines(skip_bad) if bad is None else bad
    known = IdSet()
    for file in expand(path, (".tsv", ".2", ".txt")):
        rows = _triples(file, bad)
        for query, group in itertools.groupby(rows, key=lambda row: row[1]):
            lines = list(group)
            if not known.add(query):
                bad.add(
                    f"query {query!r} was there before; sort the file by its first column",
                    lines[0][0].place,
                )
                continue
            negatives = list(dict.fromkeys(negative for _, _, _, negative in lines))
            random.Random(f"{seed} {query}").shuffle(negatives)
            positives = dict.fromkeys(positive for _, _, positive, _ in lines)
            yield Negatives(query, tuple(positives), tuple(negatives[:keep]))


def read_hard_negatives(
    path: str | os.PathLike[str],
    *,
    systems: Sequence[str] = (),
    per_system: int = 5,
    margin: float | None = 3.0,
    scores: Scores | None = None,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[Negatives]:
    """msmarco-hard-negatives.jsonl.gz: {"qid", "pos": […], "neg": {system: […]}}.

    From each system (all, or those named) the first `per_system` passages that no system before
    gave, and whose cross-encoder score is at least `margin` below that of the worst positive:
    others may well be right answers. Scores stand in the file ({"pid", "ce-score"}) or come
    from a `Scores` table. Queries left without positives or negatives are left out and counted.
    """
    bad = BadLines(skip_bad) if bad is None else bad
    for file in expand(path, (".jsonl",)):
        for line in text_lines(Piece(file), bad):
            try:
                record = json_object(line.text)
                sample = _hard(record, systems, per_system, margin, scores)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if sample.positives and sample.negatives:
                yield sample
            else:
                bad.leave_out("queries without positives or negatives")


class Scores:
    """Cross-encoder scores from lines of query, passage, score: twelve bytes a pair."""

    def __init__(self, path: str | os.PathLike[str], bad: BadLines | None = None):
        bad = bad or BadLines()
        hashes, values = [], []
        for file in expand(path, (".tsv", ".txt")):
            for line in text_lines(Piece(file), bad):
                try:
                    query, passage, score = columns(line.text, ("query", "passage", "score"))
                    values.append(np.float32(score))
                except BadRecord as error:
                    bad.add(error, line.place)
                    continue
                except ValueError:
                    bad.add(f"the score {score!r} is not a number", line.place)
                    continue
                hashes.append(id_hash(f"{query}\t{passage}"))
        order = np.argsort(np.array(hashes, np.uint64), kind="stable")
        self._hashes = np.array(hashes, np.uint64)[order]
        self._values = np.array(values, np.float32)[order]

    def get(self, query: str, passage: str) -> float | None:
        value = np.uint64(id_hash(f"{query}\t{passage}"))
        place = int(np.searchsorted(self._hashes, value))
        if place < len(self._hashes) and self._hashes[place] == value:
            return float(self._values[place])
        return None


def _triples(file: str, bad: BadLines) -> Iterator[tuple[Line, str, str, str]]:
    for line in text_lines(Piece(file), bad):
        fields = line.text.split()
        if len(fields) == 3:
            yield line, fields[0], fields[1], fields[2]
        else:
            bad.add(
                f"{len(fields)} columns; expected 3: query, positive passage, negative passage",
                line.place,
            )


def _hard(
    record: Mapping[str, Any],
    systems: Sequence[str],
    per_system: int,
    margin: float | None,
    scores: Scores | None,
) -> Negatives:
    query = string(record, "qid", "query_id", what="query id")
    positives = [_scored(query, item, scores) for item in record.get("pos") or []]
    by_system = record.get("neg") or {}
    if not isinstance(by_system, dict):
        raise BadRecord("'neg' is not an object {system: [passages]}")
    limit = None
    if margin is not None and positives:
        limit = min(_needed(query, *item) for item in positives) - margin
    negatives: dict[str, str] = {}
    for system in systems or by_system:
        taken = 0
        for item in by_system.get(system, ()):
            passage, score = _scored(query, item, scores)
            if limit is not None and _needed(query, passage, score) > limit:
                continue
            if passage in negatives:
                continue
            negatives[passage] = system
            taken += 1
            if taken >= per_system:
                break
    return Negatives(
        query, tuple(p for p, _ in positives), tuple(negatives), tuple(negatives.values())
    )


def _scored(query: str, item: Any, scores: Scores | None) -> tuple[str, float | None]:
    if isinstance(item, dict):
        passage, score = string(item, "pid", what="passage id"), item.get("ce-score")
        if score is not None and not isinstance(score, int | float):
            raise BadRecord(f"the score of passage {passage!r} is not a number")
    else:
        passage, score = str(item), None
    if score is None and scores is not None:
        score = scores.get(query, passage)
    return passage, score


def _needed(query: str, passage: str, score: float | None) -> float:
    if score is None:
        raise BadRecord(
            f"no cross-encoder score for query {query!r} and passage {passage!r}, which the "
            f"margin needs; give a table of scores, or no margin"
        )
    return score
