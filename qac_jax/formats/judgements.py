"""Judgements: which passage answers which query, with or without a grade.

Layouts (TREC, BEIR, pairs, ORCAS clicks) differ in their columns, by which each line is read.
"""

import csv
import io
import itertools
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError, UserError, nearest
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, expand, find, json_object, parsed, string, whole_text
from qac_jax.formats.identities import IdSet
from qac_jax.formats.training import read_training_lines


# trec_eval counts how often each grade occurs, from 0 to the highest.
_HIGHEST = 1_000_000
# What the column, or the key, of one's own questions may be called.
_QUESTION = ("question", "query", "text")
# Names among which the nearest one is looked for.
_MOST_KNOWN = 20_000


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
    """All judgements of a file, folder or pattern; of DPR's training file (.json) each
    question's first positive. Where the known ids are given (sets, or `IdSet`
    for millions), a judgement of a query without text or of a passage that is nowhere is a bad
    record. The same again is left out and counted; one of another grade is a bad record.
    """
    own, bad = bad is None, BadLines() if bad is None else bad
    known, graded = IdSet(), IdSet()
    files = expand(path, (".tsv", ".txt", ".qrels", ".qrel", ".jsonl"))
    rows = (_gold(f, bad) if f.endswith(".json") else parsed(f, bad, _parse) for f in files)
    for place, judgement in itertools.chain.from_iterable(rows):
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


def _gold(file: str, bad: BadLines) -> Iterator[tuple[Place, Judgement]]:
    """What DPR trains each question with: its first positive."""
    for line in read_training_lines(file, "dpr", bad=bad):
        if line.positives and line.positives[0].id:
            yield Place(file), Judgement(line.query_id, line.positives[0].id)


def _parse(line: Line) -> tuple[Place, Judgement] | None:
    if line.text.startswith("{"):  # BEIR's columns as JSON, and so in Parquet
        record = json_object(line.text)
        query = string(record, "query-id", "query_id", "qid", what="query")
        passage = string(record, "corpus-id", "passage_id", "docid", "pid", what="passage")
        return line.place, Judgement(query, passage, _grade(record.get("score", 1)))
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


def _grade(given: Any) -> int:
    try:
        value = int(given)
        if isinstance(given, float) and value != given:
            raise ValueError
    except (OverflowError, TypeError, ValueError):
        raise BadRecord(f"the grade {given!r} is not a whole number") from None
    if abs(value) > _HIGHEST:
        raise BadRecord(f"the grade {str(given)[:20]} is not within ±{_HIGHEST:,}")
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


class Asked(NamedTuple):
    """A question of one's own and what answers it, a file or an id."""

    text: str
    answer: str
    line: int


def read_asked(path: str | os.PathLike[str]) -> list[Asked]:
    """Questions and answers: JSON lines {"question", "answer"}, or two columns divided by tabs,
    commas or semicolons, below their names or without."""
    # Other characters that str.splitlines knows stand in texts that were copied from a page.
    lines = list(io.StringIO(whole_text(os.fspath(path)), newline=None))
    head = next(filter(str.strip, lines), "")
    found = list(_asked_json(path) if head.startswith("{") else _asked_rows(path, lines, head))
    for one in found:
        if not one.text or not one.answer:
            raise DataError("a question or its answer is missing", file=path, line=one.line)
    if not found:
        raise DataError("there is no question in the file", file=path)
    return found


def _asked_json(path: str | os.PathLike[str]) -> Iterator[Asked]:
    def parse(line: Line) -> list[Asked]:
        record = json_object(line.text)
        text, answers = string(record, *_QUESTION).strip(), record.get("answer")
        answers = answers if isinstance(answers, list) and answers else [answers]
        return [Asked(text, str(a or "").strip(), line.place.line or 0) for a in answers]

    return itertools.chain.from_iterable(parsed(os.fspath(path), BadLines(), parse))


def _asked_rows(path: object, lines: Sequence[str], head: str) -> Iterator[Asked]:
    divider = "\t" if "\t" in head else max(",;", key=head.count)
    csv.field_size_limit(1 << 30)
    reader = csv.reader(lines, delimiter=divider, skipinitialspace=True)
    of_text, named = 0, False
    for row in filter(any, reader):
        if len(row) != 2:
            said = "expected a question and its answer, with quotes around what has commas"
            raise DataError(f"{len(row)} columns; {said}", file=path, line=reader.line_num)
        names = [cell.strip().lower() for cell in row]
        if not named and (is_name := [name in _QUESTION for name in names]) and any(is_name):
            of_text = is_name.index(True)
        else:
            text = " ".join(row[of_text].split())
            yield Asked(text, row[1 - of_text].strip(), reader.line_num)
        named = True


def judge_by_places(
    asked: Sequence[Asked], passages: Iterable[Mapping[str, Any]], file: object
) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Query -> text, and query -> passage -> 1: an answer is the id of a passage or document, or
    the path or name of a file, of which any passage answers.

    One answer of ten may be nowhere, such as in a file that could not be read.
    """
    wanted = {one.answer for one in asked}
    exact: dict[str, list[str]] = {}
    named: dict[str, dict[str, list[str]]] = {}  # name of a file -> its path -> its passages
    known: dict[str, None] = {}
    for record in passages:
        path = str(record.get("path") or "")
        base = os.path.basename(path)
        if base and base == os.path.basename(str(file)):
            raise DataError(
                f"a document has the same name ({path}); move the questions out of the folder of "
                "the documents, or, where they are others, rename their file",
                file=file,
            )
        if len(known) < _MOST_KNOWN:
            known.setdefault(path or record["_id"])
        for name in {record["_id"], str(record.get("doc")), path} & wanted:
            exact.setdefault(name, []).append(record["_id"])
        if base in wanted:
            named.setdefault(base, {}).setdefault(path, []).append(record["_id"])
    names: dict[str, str] = {}
    judged: dict[str, dict[str, int]] = {}
    lost: list[Asked] = []
    for one in asked:
        paths = named.get(one.answer, {})
        found = exact.get(one.answer) or next(iter(paths.values()), [])
        if one.answer not in exact and len(paths) > 1:
            said = f"{len(paths)} files are called {one.answer!r}; give the path, such as"
            raise DataError(f"{said} {min(paths)!r}", file=file, line=one.line)
        if not found:
            lost.append(one)
            continue
        name = names.setdefault(one.text, f"asked:{one.line}")
        judged.setdefault(name, {}).update(dict.fromkeys(found, 1))
    if lost:
        near = nearest(lost[0].answer, known)
        said = f"no passage, document or file is called {lost[0].answer!r}; {near}"
        if len(lost) > len(asked) // 10:
            raise DataError(said, file=file, line=lost[0].line)
        progress.say(f"{file}: {len(lost)} of {len(asked)} answers are left out; {said}")
    return {name: text for text, name in names.items()}, judged


def write_questions(
    out: Writer,
    name: str,
    texts: Mapping[str, str],
    judged: Mapping[str, Mapping[str, int]],
    *,
    beir: bool = False,
) -> None:
    """Query id -> text, and query id -> passage id -> grade, as files of an artefact."""
    with out.open("queries.jsonl" if beir else f"{name}_queries.jsonl") as file:
        for query, text in texts.items():
            file.write(json.dumps({"_id": query, "text": text}, ensure_ascii=False) + "\n")
    with out.open(f"qrels/{name}.tsv" if beir else f"{name}.tsv") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query in texts:
            file.writelines(f"{query}\t{p}\t{grade}\n" for p, grade in judged[query].items())
