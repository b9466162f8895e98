"""A run on the disk: where each query's lines are, and its ranking when it is asked for.

For runs that are larger than memory: 32 bytes a query, whatever the number of passages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from qac_jax.errors import DataError
from qac_jax.formats import runs
from qac_jax.formats.files import bare_lines, compression, open_bytes
from qac_jax.formats.identities import IdIndex, IdSet
from qac_jax.formats.runs import Ranking


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
            rows = runs.lines_of(self._path, lines=lines)
            for key, group in itertools.groupby(rows, key=itemgetter(1)):
                passages: set[bytes] = set()
                count = 0
                for number, _, passage, _ in group:
                    if not count:
                        self._starts.append(lines.start)
                        self._numbers.append(number)
                    passages.add(passage)
                    count += 1
                name = runs.decoded(key, self._path, self._numbers[-1])
                if len(passages) < count:
                    raise runs.repeated(self._path, name)
                if not finished.add(name):
                    raise NotGrouped
                yield name
            self._starts.append(lines.end)
        if not self._numbers:
            raise DataError(runs.EMPTY, file=self._path)

    def _place(self, query: str) -> int | None:
        for candidate in self._index.candidates(query):
            if self._name(candidate) == query:
                return candidate
        return None

    def _name(self, place: int) -> str:
        number, query, _, _ = next(self._rows(place))
        return runs.decoded(query, self._path, number)

    def _read(self, place: int) -> Ranking:
        ids, scores = [], []
        for number, _, passage, score in self._rows(place):
            ids.append(runs.decoded(passage, self._path, number))
            scores.append(score)
        ranking = runs.ranked(ids, scores)
        return ranking if self._depth is None else ranking.top(self._depth)

    def _rows(self, place: int) -> Iterator[tuple[int, bytes, bytes, float]]:
        start = self._starts[place]
        with open(self._path, "rb") as file:
            file.seek(start)
            block = file.read(self._starts[place + 1] - start)
        return runs.lines_of(self._path, lines=block.split(b"\n"), first=self._numbers[place])


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
    return runs.read_run(path, depth)
