"""Judgements: which passage answers which query, with or without a grade.

The formats (TREC, BEIR, pairs, ORCAS clicks) differ in their columns, by which each line is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.files import Line, Piece, expand, find, text_lines
from qac_jax.formats.identities import IdSet
from qac_jax.formats.registry import JUDGEMENTS


# trec_eval counts how often each grade occurs, from 0 to the highest.
_HIGHEST = 1_000_000


class Judgement(NamedTuple):
    query: str
    passage: str
    grade: int = 1


@dataclass(frozen=True)
class JudgementFormat:
    """A layout of one judgement a line; the modules of `readers` list them in
    JUDGEMENT_FORMATS.

    columns: what they are called. matches: where another format has as many, which lines are
    its own (None: all that no other one takes). read: what reads a data set by its name, where
    the format is not a layout of lines but a library's.
    """

    columns: tuple[str, ...]
    parse: Callable[[Sequence[str]], Judgement]
    matches: Callable[[Sequence[str]], bool] | None = None
    read: Callable[[str], Iterator[Judgement]] | None = None

    @property
    def by_name(self) -> bool:
        """Whether FORMAT:NAME stands for the judgements of a data set."""
        return self.read is not None


def read_judgements(
    path: str | os.PathLike[str],
    *,
    queries: Container[str] | None = None,
    passages: Container[str] | None = None,
    skip_bad: int | None = None,
    bad: BadLines | None = None,
) -> Iterator[Judgement]:
    """All judgements of a file or a data set. Where the known ids are given (sets, or `IdSet` for
    millions), a judgement of a query without text or of a passage that is nowhere is a bad record.
    The same judgement again is left out and counted; one of another grade is a bad record.
    """
    own = bad is None
    bad = BadLines(skip_bad) if bad is None else bad
    known, graded = IdSet(), IdSet()
    for place, judgement in _parsed(path, bad):
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


def _parsed(path: str | os.PathLike[str], bad: BadLines) -> Iterator[tuple[Place, Judgement]]:
    """Every judgement with its place; lines that are none go to `bad`."""
    if named := JUDGEMENTS.named(path):
        format, name = named
        read = JUDGEMENTS.get(format).read
        assert read is not None
        for number, judgement in enumerate(read(name), start=1):
            yield Place(name, number), judgement
        return
    formats = _by_width()
    for file in expand(path, (".tsv", ".txt", ".qrels", ".qrel")):
        for line in text_lines(Piece(file), bad):
            try:
                found = _parse(line, formats)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            if found is not None:
                yield line.place, found


def judgements_file(folder: str | os.PathLike[str], split: str) -> str:
    """The judgements of a split in a BEIR folder."""
    below = os.path.join(os.fspath(folder), "qrels")
    if file := find(below, f"{split}.tsv"):
        return file
    there = sorted(os.listdir(below)) if os.path.isdir(below) else []
    raise UserError(
        f"{folder} has no qrels/{split}.tsv; splits there: "
        f"{', '.join(name.split('.')[0] for name in there) or 'none'}"
    )


def by_query(judgements: Iterator[Judgement]) -> dict[str, dict[str, int]]:
    """query -> passage -> grade, as scorers want it."""
    table: dict[str, dict[str, int]] = {}
    for query, passage, grade in judgements:
        table.setdefault(query, {})[passage] = grade
    return table


def _parse(line: Line, known: Mapping[int, Sequence[JudgementFormat]]) -> Judgement | None:
    fields = line.text.split("\t") if "\t" in line.text else line.text.split()
    if line.offset == 0 and fields[0].lower() in ("query-id", "query_id", "qid"):
        return None
    for format in known.get(len(fields), ()):
        if format.matches is None or format.matches(fields):
            return format.parse(fields)
    raise BadRecord(f"{len(fields)} columns; expected {_expected(known)}")


def _by_width() -> dict[int, list[JudgementFormat]]:
    """The formats by their number of columns, those with a condition first."""
    by_width: dict[int, list[JudgementFormat]] = {}
    for format in sorted(JUDGEMENTS.all().values(), key=lambda f: f.matches is None):
        if format.by_name:
            continue
        by_width.setdefault(len(format.columns), []).append(format)
    return by_width


def _expected(known: Mapping[int, Sequence[JudgementFormat]]) -> str:
    shown = [f"{n} ({', '.join(known[n][-1].columns)})" for n in sorted(known)]
    return ", ".join(shown[:-1]) + f" or {shown[-1]}"


def grade(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadRecord(f"the grade {text!r} is not a whole number") from None
    if abs(value) > _HIGHEST:
        raise BadRecord(f"the grade {text[:20]} is not within ±{_HIGHEST:,}")
    return value


class NamedQuestion(NamedTuple):
    id: str
    text: str
    names: tuple[str, ...]
    split: str


def read_named(path: str | os.PathLike[str]) -> list[NamedQuestion]:
    """All questions of a file."""
    questions: dict[str, NamedQuestion] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                question = _named(line, path, number)
                if question.id in questions:
                    message = f"question {question.id!r} stands there already"
                    raise DataError(message, file=path, line=number)
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


def _named(line: str, path: str | os.PathLike[str], number: int) -> NamedQuestion:
    try:
        record = json.loads(line)
        texts = record["_id"], record["text"], record.get("split", "test")
        names = tuple(record["relevant"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a question judged by names ({error!r})", file=path, line=number
        ) from None
    if not all(isinstance(text, str) and text for text in (*texts, *names)) or not names:
        raise DataError("an empty id, text or name, or no name at all", file=path, line=number)
    return NamedQuestion(texts[0], texts[1], names, texts[2])


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
