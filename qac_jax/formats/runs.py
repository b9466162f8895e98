"""Runs: for every query its ranked passages, and TREC's files of them.

    run = read_run("bm25.trec")
    run["156493"].ids[:10], run["156493"].scores[:10]

There is one order, trec_eval's: scores descending, equal scores by id descending, and scores are
equal when they are so in single precision, which is all that trec_eval keeps. The rank column of
a file orders nothing; it must hold numbers, so that columns in the wrong order are noticed.

`read_run` holds a run, cut while it is read; `RunFile` holds where each query begins;
`stream_run` reads one query at a time from a file whose lines are grouped by query, and tolerates
bad lines where a stage allows them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import IO, NamedTuple

import numpy as np

from qac_jax.errors import DataError, UserError
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.files import bare_lines, compression, open_bytes
from qac_jax.formats.identities import IdIndex, IdSet


TAG = "qac_jax"
EMPTY = "no line in it; expected a run of one passage a line"


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
    rank, score) or three (MS MARCO: query, passage, rank); plain or compressed.

    With `depth` only the first passages of a query are held, beside the lines of one query that
    stand together.
    """
    path = os.fspath(path)
    run: Run = {}
    # Many queries retrieve the same passage: ids are kept once.
    known: dict[str, str] = {}
    for key, rows in itertools.groupby(lines_of(path), key=itemgetter(1)):
        ids: list[str] = []
        scores: list[float] = []
        for number, _, passage, score in rows:
            if not ids:
                name = decoded(key, path, number)
            ids.append(decoded(passage, path, number))
            scores.append(score)
        if name in run:  # its lines do not stand together
            ids += run[name].ids
            scores += run[name].scores.tolist()
        if len(set(ids)) < len(ids):
            raise repeated(path, name)
        ranking = ranked(ids, scores)
        ranking = ranking if depth is None else ranking.top(depth)
        run[name] = Ranking(tuple(known.setdefault(i, i) for i in ranking.ids), ranking.scores)
    if not run:
        raise DataError(EMPTY, file=path)
    return run


def stream_run(
    paths: Sequence[str | os.PathLike[str]], bad: BadLines
) -> Iterator[tuple[str, Ranking]]:
    """The same order, one query at a time: for runs that are larger than memory.

    The lines of a query must stand together; the files follow one another as if they were one.
    """
    rows = ((os.fspath(path), *row) for path in paths for row in lines_of(os.fspath(path), bad))
    finished = IdSet()
    for key, group in itertools.groupby(rows, key=lambda row: row[2]):
        scores: dict[str, float] = {}
        for path, number, _, passage, score in group:
            try:
                query, name = decoded(key, path, number), decoded(passage, path, number)
            except DataError as error:
                bad.add(error.message, Place(path, number))
                continue
            if not scores and not finished.add(query):
                message = f"query {query!r} was there before; sort the run by query"
                bad.add(message, Place(path, number))
                break
            if name in scores:
                bad.add(_again(name, query), Place(path, number))
            else:
                scores[name] = score
        if scores:
            yield query, ranked(list(scores), list(scores.values()))


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
    """Writes a run's lines, ranks from 1, scores so that they read back as the same number.

    Columns stand apart by blanks, or by tabs where an id holds a blank.
    """
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
    """Name -> path for a run's file, a folder that holds one, or several joined by commas.

    A run is called after its file, or after its folder where files are all called alike.
    """
    paths = [_run_file(part.strip()) for part in os.fspath(source).split(",") if part.strip()]
    if repeated := {path for path in paths if paths.count(path) > 1}:
        raise UserError(f"the run {min(repeated)} is named twice; give each run once")
    for naming in (_stem, _folder_stem, str):
        names = [naming(path) for path in paths]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, paths, strict=True))


def _run_file(path: str) -> str:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UserError(f"the run {path} does not exist; give a TREC run file")
        return path
    inside = sorted(n for n in os.listdir(path) if n.endswith((".trec", ".run", ".trec.gz")))
    if len(inside) != 1:
        names = ", ".join(inside) or "none"
        raise UserError(f"{path} holds {names} with the ending .trec or .run; expected one run")
    return os.path.join(path, inside[0])


def _stem(path: str) -> str:
    name = os.path.basename(path).removesuffix(".gz").rsplit(".", 1)[0]
    return name if name not in ("run", "") else _folder_stem(path).split("/")[0]


def _folder_stem(path: str) -> str:
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return f"{folder}/{os.path.basename(path).rsplit('.', 1)[0]}"


def lines_of(
    path: str, bad: BadLines | None = None, *, lines: Iterable[bytes] | None = None, first: int = 1
) -> Iterator[tuple[int, bytes, bytes, float]]:
    """(line number, query, passage, score); millions of lines, so nothing is done twice.

    Without `bad` the first bad line is an error. `lines`: those of a part of the file, from line
    number `first` on.
    """
    width, sign = 0, 1
    pick = itemgetter(0, 0, 0, 0)
    with open_bytes(path) if lines is None else contextlib.nullcontext() as file:
        for number, raw in enumerate(bare_lines(file, path) if file else lines or (), first):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            fields = raw.rstrip(b"\r").split(b"\t") if b"\t" in raw else raw.split()
            if len(fields) != (width or 6):
                if not raw.strip():
                    continue
                if len(fields) not in _LAYOUTS or width:
                    _refuse(_wrong_width(fields, width), path, number, bad)
                    continue
            if not width:
                width = len(fields)
                columns, sign = _LAYOUTS[width]
                pick = itemgetter(*columns)
            query, passage, figure, rank = pick(fields)
            try:
                float(rank)
                score = sign * float(figure)
            except ValueError:
                _refuse(_no_number(figure, rank), path, number, bad)
                continue
            if not math.isfinite(score):
                _refuse(f"the score {score} is not a finite number", path, number, bad)
                continue
            yield number, query, passage, score


# Number of columns -> the columns of query, passage, score (or rank: a smaller one is better) and
# rank, and the sign that makes a larger score better.
_LAYOUTS: dict[int, tuple[tuple[int, int, int, int], int]] = {
    6: ((0, 2, 4, 3), 1),
    4: ((0, 1, 3, 2), 1),
    3: ((0, 1, 2, 2), -1),
}


def _refuse(message: str, path: str, line: int, bad: BadLines | None) -> None:
    if bad is None:
        raise DataError(message, file=path, line=line)
    bad.add(message, Place(path, line))


def _no_number(score: bytes, rank: bytes) -> str:
    try:
        float(rank)
    except ValueError:
        return f"the rank {rank.decode(errors='replace')!r} is not a number"
    return f"the score {score.decode(errors='replace')!r} is not a number"


def decoded(name: bytes, path: str, line: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"the id {name!r} is not UTF-8", file=path, line=line) from error


def _wrong_width(fields: Sequence[bytes], width: int) -> str:
    return f"{len(fields)} columns" + (
        f", but {width} on the lines before"
        if width
        else "; expected 6 (query, Q0, passage, rank, score, tag), 4 (query, passage, rank, "
        "score) or 3 (query, passage, rank)"
    )


def repeated(path: str, query: str) -> DataError:
    """Where a query has a passage for the second time: read again, as this is rare."""
    seen = set()
    line, again = 0, b""
    for number, name, passage, _ in lines_of(path):
        if name.decode() == query:
            if passage in seen:
                line, again = number, passage
                break
            seen.add(passage)
    return DataError(_again(again.decode(), query), file=path, line=line)


def _again(passage: str, query: str) -> str:
    return (
        f"passage {passage!r} was ranked for query {query!r} before; every passage may stand "
        f"once a query"
    )


def _needs_tabs(names: Iterable[str]) -> bool:
    """Whether an id holds a blank; refuses what no file can hold."""
    names = list(names)
    together = "".join(names)
    if "" not in names and together.split() == [together]:
        return False
    for name in names:
        if not name.strip() or "\t" in name or len(name.splitlines()) > 1:
            raise UserError(
                f"the id {name!r} is empty or holds a tab or a line's end, which no run file can "
                f"hold; rename it"
            )
    return True


# Rankings that are kept: the queries of a shard are asked for several times.
_KEPT = 1024


class RunFile(Mapping[str, Ranking]):
    """The first `depth` passages of every query. Make it with `open_run`."""

    def __init__(self, path: str, depth: int | None):
        self._path, self._depth = path, depth
        self._starts, self._numbers = array("q"), array("q")
        self._index = IdIndex(self._scan())
        self._get = functools.lru_cache(_KEPT)(self._read)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return (self._name(place) for place in range(len(self)))

    def __contains__(self, query: object) -> bool:
        return isinstance(query, str) and self._place(query) is not None

    def __getitem__(self, query: str) -> Ranking:
        place = self._place(query)
        if place is None:
            raise KeyError(query)
        return self._get(place)

    def _scan(self) -> Iterator[str]:
        """The queries in order; notes where each begins, and checks every line."""
        finished = IdSet()
        with open_bytes(self._path) as file:
            lines = _Counted(bare_lines(file, self._path))
            rows = lines_of(self._path, lines=lines)
            for key, group in itertools.groupby(rows, key=itemgetter(1)):
                passages: set[bytes] = set()
                count = 0
                for number, _, passage, _ in group:
                    if not count:
                        self._starts.append(lines.start)
                        self._numbers.append(number)
                    passages.add(passage)
                    count += 1
                name = decoded(key, self._path, self._numbers[-1])
                if len(passages) < count:
                    raise repeated(self._path, name)
                if not finished.add(name):
                    raise NotGrouped
                yield name
            self._starts.append(lines.end)
        if not self._numbers:
            raise DataError(EMPTY, file=self._path)

    def _place(self, query: str) -> int | None:
        for candidate in self._index.candidates(query):
            if self._name(candidate) == query:
                return candidate
        return None

    def _name(self, place: int) -> str:
        number, query, _, _ = next(self._rows(place))
        return decoded(query, self._path, number)

    def _read(self, place: int) -> Ranking:
        ids, scores = [], []
        for number, _, passage, score in self._rows(place):
            ids.append(decoded(passage, self._path, number))
            scores.append(score)
        ranking = ranked(ids, scores)
        return ranking if self._depth is None else ranking.top(self._depth)

    def _rows(self, place: int) -> Iterator[tuple[int, bytes, bytes, float]]:
        start = self._starts[place]
        with open(self._path, "rb") as file:
            file.seek(start)
            block = file.read(self._starts[place + 1] - start)
        return lines_of(self._path, lines=block.split(b"\n"), first=self._numbers[place])


class NotGrouped(Exception):
    """The lines of a query do not stand together."""


class _Counted:
    """Lines, and the bytes before and after the last one."""

    def __init__(self, lines: Iterable[bytes]):
        self._lines = lines
        self.start = self.end = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.start, self.end = self.end, self.end + len(line) + 1
            yield line


def open_run(path: str | os.PathLike[str], depth: int | None = None) -> Mapping[str, Ranking]:
    """A run, left on the disk where it is a plain file whose lines are grouped by query."""
    path = os.fspath(path)
    if not compression(path):
        with contextlib.suppress(NotGrouped):
            return RunFile(path, depth)
    return read_run(path, depth)
