"""Training files: questions with the texts of their passages (Tevatron's, RocketQA's, DPR's), and
negatives by ids."""

import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import Line, expand, json_object, parsed, parsed_objects, string
from qac_jax.formats.identities import IdSet
from qac_jax.formats.registry import TRAINING


class TrainingLine(NamedTuple):
    """A question with passages. Ids are empty where a format has none (RocketQA's)."""

    query_id: str
    query: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...]


@dataclass(frozen=True)
class TrainingFormat:
    """A way to store training lines, listed by its name in TRAINING_FORMATS."""

    suffixes: tuple[str, ...]
    read: Callable[[str, BadLines], Iterator[TrainingLine]]


def read_training_lines(
    path: str | os.PathLike[str], format: str = "tevatron", *, bad: BadLines | None = None
) -> Iterator[TrainingLine]:
    """All training lines of a file, folder or pattern."""
    reader = TRAINING.get(format)
    bad = BadLines() if bad is None else bad
    for file in expand(path, reader.suffixes):
        yield from reader.read(file, bad)


def _tevatron(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    """{"query_id", "query", "positive_passages", "negative_passages"} a line."""

    def parse(line: Line) -> TrainingLine:
        record = json_object(line.text)
        found = TrainingLine(
            string(record, "query_id", "qid", what="query id"),
            string(record, "query", what="query"),
            tuple(map(passage_of, _objects(record, "positive_passages"))),
            tuple(map(passage_of, _objects(record, "negative_passages"))),
        )
        if not found.query.strip():
            raise BadRecord(f"the text of query {found.query_id!r} is empty")
        if not found.positives:
            raise BadRecord(f"query {found.query_id!r} has no positive passage")
        return found

    return parsed(file, bad, parse)


def passage_of(record: Mapping[str, Any]) -> Passage:
    """A passage as Tevatron stores it."""
    if isinstance(record.get("text"), list):
        raise BadRecord("the text is a list of token ids; expected Tevatron's file of plain text")
    return Passage(
        string(record, "docid", "text_id", "_id", what="id"),
        string(record, "title").strip(),
        string(record, "text", what="text"),
    )


def _rocketqa(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    """RocketQA's tables. Neighbouring lines of one question become one.

    dual.train.tsv has question, positive's title and text, negative's title and text, 0;
    cross.train.tsv has question, title, text, label.
    """
    for query, group in itertools.groupby(parsed(file, bad, _row), key=lambda row: row[0]):
        sides: tuple[dict[Passage, None], dict[Passage, None]] = {}, {}
        for _, *passages in group:
            for side, passage in zip(sides, passages, strict=True):
                if passage:
                    side[passage] = None
        yield TrainingLine("", query, tuple(sides[0]), tuple(sides[1]))


def _row(line: Line) -> tuple[str, Passage | None, Passage | None]:
    """A question with its positive and negative passage, where there are such."""
    given = line.text.split("\t")
    if len(given) not in (4, 6):
        raise BadRecord(f"{len(given)} columns; expected 6 or 4, as RocketQA has")
    query, *fields, label = given
    passages = [
        Passage("", "" if title == "-" else title.strip(), text.strip())
        for title, text in zip(fields[::2], fields[1::2], strict=True)
    ]
    if not query.strip() or not all(p.text for p in passages):
        raise BadRecord("the question or a passage is empty")
    if len(passages) == 2:
        return query.strip(), passages[0], passages[1]
    if label not in ("0", "1"):
        raise BadRecord(f"the label {label!r} is neither 0 nor 1")
    (passage,) = passages
    return (query.strip(), passage, None) if label == "1" else (query.strip(), None, passage)


def _dpr(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    """biencoder-nq-train.json: a JSON array of {"question", "answers", "positive_ctxs",
    "negative_ctxs", "hard_negative_ctxs"}, of passages {"title", "text", "passage_id" or "psg_id"}.

    Negatives are the hard ones. Questions are numbered from 0. One without a positive passage stays
    without, as in DPR, where training leaves it out.
    """

    def parse(number: int, record: dict[str, Any]) -> TrainingLine:
        question = string(record, "question", what="question").strip()
        if not question:
            raise BadRecord("the question is empty")
        positives = _passages(record, "positive_ctxs")
        return TrainingLine(
            str(number), question, positives, _passages(record, "hard_negative_ctxs")
        )

    return parsed_objects(file, bad, parse)


def _passages(record: Mapping[str, Any], key: str) -> tuple[Passage, ...]:
    return tuple(
        Passage(
            string(passage, "passage_id", "psg_id"),
            string(passage, "title").strip(),
            string(passage, "text", what="text").strip(),
        )
        for passage in _objects(record, key)
    )


def _objects(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    given = record.get(key) or []
    if not isinstance(given, list) or not all(isinstance(passage, dict) for passage in given):
        raise BadRecord(f"{key!r} is not a list of passages")
    return given


TRAINING_FORMATS = {
    "dpr": TrainingFormat((".json",), _dpr),
    "rocketqa": TrainingFormat((".tsv",), _rocketqa),
    "tevatron": TrainingFormat((".jsonl", ".json"), _tevatron),
}


class Negatives(NamedTuple):
    """One query in a source of negatives, with the ids of its passages."""

    query_id: str
    positives: Sequence[str] = ()
    negatives: Sequence[str] = ()
    query: str = ""
    positives_scores: Sequence[float] = ()
    negatives_scores: Sequence[float] = ()


def read_triples(
    path: str | os.PathLike[str], *, keep: int = 128, seed: int = 42, bad: BadLines | None = None
) -> Iterator[Negatives]:
    """qidpidtriples.train.full.2: query, positive, negative in lines grouped by query.

    Each query's negatives are shuffled and `keep` of them kept (128 in the released recipes, 30
    by Tevatron's default). The order depends on seed and query alone.
    """
    bad = BadLines() if bad is None else bad
    known = IdSet()
    for file in expand(path, (".tsv", ".2", ".txt")):
        rows = parsed(file, bad, _triple)
        for query, group in itertools.groupby(rows, key=lambda row: row[1]):
            lines = list(group)
            if not known.add(query):
                message = f"query {query!r} was there before; sort the file by its first column"
                bad.add(message, lines[0][0])
                continue
            negatives = list(dict.fromkeys(negative for _, _, _, negative in lines))
            random.Random(f"{seed} {query}").shuffle(negatives)
            positives = dict.fromkeys(positive for _, _, positive, _ in lines)
            yield Negatives(query, tuple(positives), tuple(negatives[:keep]))


def _triple(line: Line) -> tuple[Place, str, str, str]:
    fields = line.text.split()
    if len(fields) != 3:
        raise BadRecord(f"{len(fields)} columns; expected 3: query, positive, negative")
    query, positive, negative = fields
    return line.place, query, positive, negative


# What sentence-transformers takes of a file of hard negatives: from each system the first passages
# whose cross-encoder score is so far below that of the worst positive; others may be right answers.
PER_SYSTEM, MARGIN = 5, 3.0


def read_hard_negatives(
    path: str | os.PathLike[str], *, bad: BadLines | None = None
) -> Iterator[Negatives]:
    """msmarco-hard-negatives.jsonl.gz: {"qid", "pos": […], "neg": {system: […]}}, of passages
    {"pid", "ce-score"}. Queries left without positives or negatives are left out and counted.
    """
    bad = BadLines() if bad is None else bad

    def scored(items: Any) -> dict[str, float]:
        return {string(item, "pid", what="id"): float(item["ce-score"]) for item in items or ()}

    def parse(line: Line) -> Negatives | None:
        record = json_object(line.text)
        query = string(record, "qid", "query_id", what="query id")
        try:
            positives = scored(record.get("pos"))
            systems = [scored(items) for items in (record.get("neg") or {}).values()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadRecord(f"not passages of a pid and a ce-score: {error!r}") from None
        highest = min(positives.values(), default=0.0) - MARGIN
        negatives: dict[str, None] = {}
        for scores in systems:
            fitting = (n for n, score in scores.items() if score <= highest and n not in negatives)
            negatives |= dict.fromkeys(list(itertools.islice(fitting, PER_SYSTEM)))
        if not positives or not negatives:
            bad.leave_out("queries without positives or negatives")
            return None
        return Negatives(query, tuple(positives), tuple(negatives))

    for file in expand(path, (".jsonl",)):
        yield from parsed(file, bad, parse)
