"""Runs: for every query its ranked passages, and TREC's files of them.

There is one order, trec_eval's: scores descending, equal scores by id descending, and scores are
equal when they are so in single precision, which is all that trec_eval keeps. The rank column of
a file orders nothing; it must hold numbers, so that columns in the wrong order are noticed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import IO, NamedTuple

import numpy as np

from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.files import TABLES, Piece, compression, is_file, raw_lines
from qac_jax.formats.identities import IdSet


TAG = "qac_jax"
# Of a run as a table.
COLUMNS = ("query", "passage", "rank", "score")


class Ranking(NamedTuple):
    """Ids and scores (float32), best first. Make it with `ranked`."""

    ids: tuple[str, ...]
    scores: np.ndarray

    def top(self, depth: int | None) -> Ranking:
        return Ranking(self.ids[:depth], self.scores[:depth])

    def without(self, unwanted: str) -> Ranking:
        """The same without one id (a query that finds itself)."""
        if unwanted not in self.ids:
            return self
        place = self.ids.index(unwanted)
        ids = self.ids[:place] + self.ids[place + 1 :]
        return Ranking(ids, np.delete(self.scores, place))


Run = dict[str, Ranking]


def ranked(ids: Sequence[str], scores: Sequence[float] | np.ndarray) -> Ranking:
    """Puts passages into trec_eval's order."""
    with np.errstate(over="ignore"):  # beyond single precision all are equally far away
        single = np.asarray(scores, np.float64).astype(np.float32)
    if len(ids) != len(single):
        raise ValueError(f"{len(ids)} ids and {len(single)} scores")
    if (single[:-1] > single[1:]).all():
        return Ranking(tuple(ids), single)
    pairs = sorted(zip(single.tolist(), ids, strict=True), reverse=True)
    ordered = np.fromiter((score for score, _ in pairs), np.float32, len(pairs))
    return Ranking(tuple(name for _, name in pairs), ordered)


def read_run(path: str | os.PathLike[str], depth: int | None = None) -> Run:
    """A file of six columns (TREC: query, Q0, passage, rank, score, tag), four (query, passage,
    rank, score; in Parquet by these names) or three (MS MARCO: query, passage, rank); of each
    query the first `depth`.
    """
    path = os.fspath(path)
    run: Run = {}
    # Many queries retrieve the same passage: ids are kept once.
    known: dict[str, str] = {}
    scattered: dict[str, dict[str, float]] = {}  # queries whose lines do not stand together
    for query, lines in itertools.groupby(_lines(path, BadLines()), key=itemgetter(1)):
        scores: dict[str, float] = {}
        if query in run:
            before = zip(run[query].ids, run[query].scores.tolist(), strict=True)
            scores = scattered[query] if query in scattered else dict(before)
            scattered[query] = scores
        for place, _, passage, score in lines:
            if passage in scores:
                said = f"passage {passage!r} was ranked for query {query!r} before"
                raise DataError(said, file=path, line=place.line)
            scores[known.setdefault(passage, passage)] = score
        if query not in run:
            run[query] = ranked(list(scores), list(scores.values())).top(depth)
    for query, scores in scattered.items():
        run[query] = ranked(list(scores), list(scores.values())).top(depth)
    if not run:
        raise DataError("no line in it; expected a run of one passage a line", file=path)
    return run


def stream_run(
    paths: Sequence[str | os.PathLike[str]], bad: BadLines
) -> Iterator[tuple[str, Ranking]]:
    """The same, one query at a time, whose lines stand together: for runs larger than memory."""
    rows = (row for path in paths for row in _lines(os.fspath(path), bad))
    finished = IdSet()
    for query, lines in itertools.groupby(rows, key=itemgetter(1)):
        scores: dict[str, float] = {}
        for place, _, passage, score in lines:
            if not scores and not finished.add(query):
                bad.add(f"query {query!r} was there before; sort the run by query", place)
                break
            if passage in scores:
                bad.add(f"passage {passage!r} was ranked for query {query!r} before", place)
            else:
                scores[passage] = score
        if scores:
            yield query, ranked(list(scores), list(scores.values()))


# Beside the run of an approximate index: exact search of some of its queries.
EXACT = "exact-sample.txt"


def write_run(path: str | os.PathLike[str], run: Mapping[str, Ranking], tag: str = TAG) -> None:
    """Writes a whole file or none; the old one stays until the new one is complete."""
    path = os.fspath(path)
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        write_lines(file, run, tag)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def write_lines(file: IO[str], run: Mapping[str, Ranking], tag: str = TAG) -> None:
    """Writes lines with ranks from 1; columns stand apart by tabs where an id holds a blank."""
    blank = "\t" if any([_needs_tabs((q, *ranking.ids)) for q, ranking in run.items()]) else " "
    for query, ranking in run.items():
        before, after = f"{query}{blank}Q0{blank}", f"{blank}{tag}\n"
        pairs = zip(ranking.ids, ranking.scores.tolist(), strict=True)
        # Nine digits distinguish all numbers of single precision.
        file.writelines(
            f"{before}{name}{blank}{rank}{blank}{score:.9g}{after}"
            for rank, (name, score) in enumerate(pairs, 1)
        )


def run_files(source: str | os.PathLike[str]) -> dict[str, str]:
    """Name -> path of runs: files, folders that hold one, several by commas. A name is the file's,
    or the folder's where files are all called alike.
    """
    paths = [_run_file(part.strip()) for part in os.fspath(source).split(",") if part.strip()]
    for naming in (_stem, lambda path: f"{_folder(path)}/{_stem(path)}", str):
        if len(names := {naming(path): path for path in paths}) == len(paths):
            break
    return names


def _run_file(path: str) -> str:
    if is_file(path) or not os.path.isdir(path):
        if not os.path.exists(path):
            raise UserError(f"the run {path} does not exist; give a TREC run file")
        return path
    inside = sorted(
        n for n in os.listdir(path) if n.endswith((".trec", ".run", ".trec.gz", *TABLES))
    )
    if len(inside) != 1:
        names = ", ".join(inside) or "none"
        raise UserError(f"{path} holds {names} with the ending .trec or .run; expected one run")
    return os.path.join(path, inside[0])


def _folder(path: str) -> str:
    return os.path.basename(os.path.dirname(os.path.abspath(path)))


def _stem(path: str) -> str:
    name = os.path.basename(path).removesuffix(".gz").rsplit(".", 1)[0]
    return name if name not in ("run", "") else _folder(path)


# Number of columns -> the columns of query, passage, score (or rank: a smaller one is better) and
# rank, and the sign that makes a larger score better.
_LAYOUTS: dict[int, tuple[tuple[int, int, int, int], int]] = {
    6: ((0, 2, 4, 3), 1),
    4: ((0, 1, 3, 2), 1),
    3: ((0, 1, 2, 2), -1),
}


def _lines(path: str, bad: BadLines) -> Iterator[tuple[Place, str, str, float]]:
    """(place, query, passage, score); millions of lines, so nothing is done twice."""
    width, sign = 0, 1
    pick = itemgetter(0, 0, 0, 0)
    table = compression(path) in TABLES
    for raw, number, _ in raw_lines(Piece(path)):
        place = Place(path, number)
        if table:
            row = json.loads(raw)
            raw = "\t".join(str(row.get(name, "")) for name in COLUMNS).encode()
        fields = raw.rstrip(b"\r\n").split(b"\t") if b"\t" in raw else raw.split()
        if not fields or len(fields) != width:
            if not raw.strip():
                continue
            if width or len(fields) not in _LAYOUTS:
                expected = width or "6 (TREC), 4 (query, passage, rank, score) or 3 (MS MARCO)"
                bad.add(f"{len(fields)} columns; expected {expected}", place)
                continue
            width = len(fields)
            columns, sign = _LAYOUTS[width]
            pick = itemgetter(*columns)
        query, passage, figure, rank = pick(fields)
        try:
            if math.isfinite(float(rank) + float(figure)):
                yield place, query.decode(), passage.decode(), sign * float(figure)
                continue
        except ValueError:
            pass
        bad.add(f"expected ids in UTF-8, a rank and a score, found {raw.strip()[:200]!r}", place)


def _needs_tabs(names: Iterable[str]) -> bool:
    """Whether an id holds a blank; refuses what no file can hold."""
    names = list(names)
    together = "".join(names)
    if "" not in names and together.split() == [together]:
        return False
    for name in names:
        if not name.strip() or "\t" in name or len(name.splitlines()) > 1:
            raise UserError(f"the id {name!r} is empty or holds a tab or a line's end; rename it")
    return True
