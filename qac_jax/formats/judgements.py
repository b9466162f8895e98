"""Judgements: which passage answers which query.

Two columns (query, passage), TREC's four (query, 0, passage, grade), BEIR's three with a header
(query-id, corpus-id, score), and ORCAS clicks.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import NamedTuple

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import Line, Piece, expand, find, text_lines
from qac_jax.formats.identities import IdSet


class Judgement(NamedTuple):
    query: str
    passage: str
    grade: int = 1


def read_judgements(
    path: str | os.PathLike[str],
    *,
    queries: Container[str] | None = None,
    passages: Container[str] | None = None,
    skip_bad: int = 0,
    bad: BadLines | None = None,
) -> Iterator[Judgement]:
    """All judgements of a file. Where the known ids are given (sets, or `IdSet` for millions),
    a judgement of a query without text or of a passage that is nowhere is a bad record.
    """
    bad = BadLines(skip_bad) if bad is None else bad
    known = IdSet()
    for file in expand(path, (".tsv", ".txt", ".qrels", ".qrel")):
        for line in text_lines(Piece(file), bad):
            try:
                judgement = _parse(line)
                if judgement is None:
                    continue
                if queries is not None and judgement.query not in queries:
                    raise BadRecord(f"query {judgement.query!r} has no text among the queries")
                if passages is not None and judgement.passage not in passages:
                    raise BadRecord(f"passage {judgement.passage!r} is not in the corpus")
                if not known.add(f"{judgement.query}\t{judgement.passage}"):
                    raise BadRecord(
                        f"passage {judgement.passage!r} was judged for query "
                        f"{judgement.query!r} before"
                    )
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            yield judgement


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


def _parse(line: Line) -> Judgement | None:
    fields = line.text.split("\t") if "\t" in line.text else line.text.split()
    if line.offset == 0 and fields[0].lower() in ("query-id", "query_id", "qid"):
        return None
    if len(fields) == 2:
        return Judgement(fields[0], fields[1])
    if len(fields) == 3:
        return Judgement(fields[0], fields[1], _grade(fields[2]))
    if len(fields) == 4 and fields[3].startswith(("http:", "https:")):
        return Judgement(fields[0], fields[2])  # ORCAS: a click
    if len(fields) == 4:
        return Judgement(fields[0], fields[2], _grade(fields[3]))
    raise BadRecord(
        f"{len(fields)} columns; expected 2 (query, passage), 3 (query, passage, grade) or "
        f"4 (query, 0, passage, grade)"
    )


def _grade(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadRecord(f"the grade {text!r} is not a whole number") from None
