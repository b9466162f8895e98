"""RocketQA's tables. Neighbouring lines of one question become one.

dual.train.tsv has question, positive's title and text, negative's title and text, 0;
cross.train.tsv has question, title, text, label.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.documents import Passage
from qac_jax.formats.files import Line, Piece, text_lines
from qac_jax.formats.lines import NO_TITLE
from qac_jax.formats.training import TrainingFormat, TrainingLine


def read(file: str, bad: BadLines) -> Iterator[TrainingLine]:
    for query, group in itertools.groupby(_rows(file, bad), key=lambda row: row[0]):
        rows = list(group)
        positives = dict.fromkeys(p for row in rows for p in row[1])
        negatives = dict.fromkeys(p for row in rows for p in row[2])
        yield TrainingLine("", query, tuple(positives), tuple(negatives))


def _rows(
    file: str, bad: BadLines
) -> Iterator[tuple[str, tuple[Passage, ...], tuple[Passage, ...]]]:
    for line in text_lines(Piece(file), bad):
        try:
            yield _row(line)
        except BadRecord as error:
            bad.add(error, line.place)


def _row(line: Line) -> tuple[str, tuple[Passage, ...], tuple[Passage, ...]]:
    fields = line.text.split("\t")
    if len(fields) not in (4, 6):
        raise BadRecord(
            f"{len(fields)} columns; expected 6 (question, title, positive, title, negative, 0) "
            f"or 4 (question, title, passage, label)"
        )
    query = fields[0].strip()
    passages = [
        _passage(title, text) for title, text in zip(fields[1:-1:2], fields[2::2], strict=False)
    ]
    if not query or not all(p.text for p in passages):
        raise BadRecord("the question or a passage is empty")
    if len(fields) == 6:
        return query, (passages[0],), (passages[1],)
    if fields[3] not in ("0", "1"):
        raise BadRecord(f"the label {fields[3]!r} is neither 0 nor 1")
    return (query, (passages[0],), ()) if fields[3] == "1" else (query, (), (passages[0],))


def _passage(title: str, text: str) -> Passage:
    return Passage("", "" if title == NO_TITLE else title.strip(), text.strip())


FORMAT = TrainingFormat((".tsv",), read)
