"""Judgements: which passage answers which query, with or without a grade.

Layouts (TREC, BEIR, pairs, ORCAS clicks) differ in their columns, by which each line is read.
"""

import itertools
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, expand, find, json_object, parsed, string
from qac_jax.formats.identities import IdSet


# trec_eval counts how often each grade occurs, from 0 to the highest.
_HIGHEST = 1_000_000


class Judgement(NamedTuple):
    query: str
    passage: str
    grade: int = 1


def read_judgements(
    path: str | os.PathLike[str],
    *,
    queries: Container[str] | None = None,
    passages: Container[str] | None = None,
    bad: BadLines | None = None,
) -> Iterator[Judgement]:
    """All judgements of a file, folder or pattern. Where the known ids are given (sets, or `IdSet`
    for millions), a judgement of a query without text or of a passage that is nowhere is a bad
    record. The same again is left out and counted; one of another grade is a bad record.
    """
    own, bad = bad is None, BadLines() if bad is None else bad
    known, graded = IdSet(), IdSet()
    files = expand(path, (".tsv", ".txt", ".qrels", ".qrel"))
    for place, judgement in itertools.chain.from_iterable(parsed(f, bad, _parse) for f in files):
        query, passage, given = judgement
        if queries is not None and query not in queries:
            bad.add(f"query {query!r} has no text among the queries", place)
        elif passages is not None and passage not in passages:
            bad.add(f"passage {passage!r} is not in the corpus", place)
        elif not graded.add(f"{query}\t{passage}\t{given}"):
            bad.leave_out("repeated judgements")
        elif not known.add(f"{query}\t{passage}"):
            bad.add(f"passage {passage!r} was judged for query {query!r} before", place)
        else:
            yield judgement
    if own and (summary := bad.summary()):
        progress.say(f"{path}: {summary}")


def _parse(line: Line) -> tuple[Place, Judgement] | None:
    fields = line.text.split("\t") if "\t" in line.text else line.text.split()
    if line.offset == 0 and fields[0].lower() in ("query-id", "query_id", "qid"):
        return None
    match fields:
        case query, passage:  # every pair is relevant
            return line.place, Judgement(query, passage)
        case query, passage, given:  # BEIR's, below a header
            return line.place, Judgement(query, passage, _grade(given))
        case query, _, passage, url if url.startswith(("http:", "https:")):  # ORCAS's clicks
            return line.place, Judgement(query, passage)
        case query, _, passage, given:  # TREC's
            return line.place, Judgement(query, passage, _grade(given))
    raise BadRecord(f"{len(fields)} columns; expected 2 to 4: query, (0,) passage, grade")


def _grade(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadRecord(f"the grade {text!r} is not a whole number") from None
    if abs(value) > _HIGHEST:
        raise BadRecord(f"the grade {text[:20]} is not within ±{_HIGHEST:,}")
    return value


def judgements_file(folder: str | os.PathLike[str], split: str) -> str:
    """The judgements of a split in a BEIR folder."""
    below = os.path.join(os.fspath(folder), "qrels")
    if file := find(below, f"{split}.tsv"):
        return file
    there = sorted(os.listdir(below)) if os.path.isdir(below) else []
    raise UserError(f"{folder} has no qrels/{split}.tsv; there are: {', '.join(there) or 'none'}")


def by_query(judgements: Iterator[Judgement]) -> dict[str, dict[str, int]]:
    """query -> passage -> grade, as scorers want it."""
    table: dict[str, dict[str, int]] = {}
    for query, passage, grade in judgements:
        table.setdefault(query, {})[passage] = grade
    return table


class NamedQuestion(NamedTuple):
    id: str
    text: str
    names: tuple[str, ...]
    split: str


def read_named(path: str | os.PathLike[str]) -> list[NamedQuestion]:
    """All questions of a file of JSON lines {"_id", "text", "relevant": [names], "split"}."""
    bad = BadLines()
    questions: dict[str, NamedQuestion] = {}

    def parse(line: Line) -> NamedQuestion:
        record = json_object(line.text)
        names = record.get("relevant")
        name, text = string(record, "_id"), string(record, "text")
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise BadRecord("not a question judged by names: 'relevant' is not a list of names")
        if not all((name, text, *names)) or not names:
            raise BadRecord("an empty id, text or name, or no name at all")
        if name in questions:
            raise BadRecord(f"question {name!r} stands there already")
        return NamedQuestion(name, text, tuple(names), string(record, "split") or "test")

    for question in parsed(os.fspath(path), bad, parse):
        questions[question.id] = question
    if not questions:
        raise DataError("there is no question in the file", file=path)
    return list(questions.values())


def judge_by_names(
    questions: Sequence[NamedQuestion], passages: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """query -> passage -> 1 for every passage whose title, or another name of it, answers it."""
    wanted: dict[str, list[str]] = {}
    for question in questions:
        for name in question.names:
            wanted.setdefault(name, []).append(question.id)
    judged: dict[str, dict[str, int]] = {question.id: {} for question in questions}
    for record in passages:
        for name in (record.get("title") or "", *record.get("aliases", ())):
            for query in wanted.get(name, ()):
                judged[query][record["_id"]] = 1
    return judged


def write_questions(
    out: Writer, name: str, texts: Mapping[str, str], judged: Mapping[str, Mapping[str, int]]
) -> None:
    """Query id -> text, and query id -> passage id -> grade, as files of an artefact."""
    with out.open(f"{name}_queries.jsonl") as file:
        for query, text in texts.items():
            file.write(json.dumps({"_id": query, "text": text}, ensure_ascii=False) + "\n")
    with out.open(f"{name}.tsv") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query in texts:
            file.writelines(f"{query}\t{p}\t{grade}\n" for p, grade in judged[query].items())
