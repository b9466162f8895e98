"""Vectors on disk: artefacts of kind "vectors".

In the folder: `vectors-00000-of-00004.npy` (rows of fp32 or fp16), `lengths-00000-of-00004.npy`
(tokens of each text), the ids, and, where the input is not an artefact, `texts/`, an artefact of
kind "passages". With windows also `windows-…` (fp16 rows) and `window_counts-…` (windows of each
text): one vector says what a passage is about on average; the maximum over parts of it finds what
it says in passing (MaxP; Dai and Callan, SIGIR 2019). The parts are windows of tokens, whose
vectors come from the passage's own forward pass (`models/heads.py`).
"""

import bisect
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, Self

import numpy as np

from qac_jax.artifacts import Artifact, arrays
from qac_jax.errors import UserError


KIND = "vectors"
DTYPES = ("float32", "float16")
_ROWS = 1 << 16  # that are read together
# If a batch's passages are asked for by this number of its queries on average, the windows of each
# passage are multiplied with all queries at once.
_SHARED = 2

_SHARD = re.compile(r"vectors-(\d{5})-of-(\d{5})\.npy")


def shard_name(index: int, count: int, what: str = "vectors") -> str:
    return f"{what}-{index:05d}-of-{count:05d}.npy"


def windows_names(index: int, count: int) -> tuple[str, str]:
    """The files of the windows of a shard's texts, and of how many each text has."""
    return shard_name(index, count, "windows"), shard_name(index, count, "window_counts")


class Shard(NamedTuple):
    """One file of rows: the offset of its data, and its rows within the whole."""

    path: str
    offset: int
    start: int
    stop: int


class Vectors:
    """Rows of vectors in files; only the rows being read are in memory."""

    def __init__(self, paths: Sequence[str]):
        if not paths:
            raise UserError("there are no files of vectors; run qac embed again")
        self.shards: list[Shard] = []
        kinds, start = set(), 0
        for path in paths:
            mapped = arrays.read(path, *DTYPES, axes=2)
            kinds.add((mapped.shape[1], mapped.dtype))
            offset = os.path.getsize(path) - mapped.nbytes
            self.shards.append(Shard(path, offset, start, start + len(mapped)))
            start += len(mapped)
        if len(kinds) > 1:
            shown = " and ".join(sorted(f"{d} x {t}" for d, t in kinds))
            raise UserError(f"vectors of different kinds ({shown}) do not go together")
        self.rows = start
        self.width, self.dtype = kinds.pop()

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        return cls([os.fspath(artifact.path / name) for name in shard_names(artifact)])

    def __len__(self) -> int:
        return self.rows

    def read(self, start: int, stop: int) -> np.ndarray:
        """A copy of rows start to stop - 1: mapped pages would count as this process's memory."""
        rows = np.empty((stop - start, self.width), self.dtype)
        for shard in self.shards:
            first, last = max(start, shard.start), min(stop, shard.stop)
            if first < last:
                with open(shard.path, "rb") as file:
                    _fill(rows[first - start : last - start], file, shard, first)
        return rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        taken = np.empty((len(rows), self.width), self.dtype)
        for shard in self.shards:
            inside = (rows >= shard.start) & (rows < shard.stop)
            if inside.any():
                mapped = arrays.read(shard.path, *DTYPES, axes=2)
                taken[inside] = mapped[rows[inside] - shard.start]
        return taken

    def slices(self, starts: np.ndarray, stops: np.ndarray) -> Iterator[np.ndarray]:
        """A copy of rows start to stop - 1 of each pair of them, which lies in one file."""
        firsts = [shard.start for shard in self.shards]
        with contextlib.ExitStack() as opened:
            files: dict[str, IO[bytes]] = {}
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                shard = self.shards[bisect.bisect_right(firsts, start) - 1]
                if shard.path not in files:
                    files[shard.path] = opened.enter_context(open(shard.path, "rb"))
                rows = np.empty((stop - start, self.width), self.dtype)
                yield _fill(rows, files[shard.path], shard, start)

    def take_each(self, rows: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """float32: the vectors of each of these rows; what several have is read once."""
        every = np.unique(np.concatenate(rows))
        taken = self.take(every).astype(np.float32)
        for wanted in rows:
            yield taken[np.searchsorted(every, wanted)]

    def check_finite(self) -> None:
        """Raises UserError where a number is NaN or infinite: it would be nobody's neighbour."""
        for start, rows in self.blocks(_ROWS):
            if not np.isfinite(rows).all():
                row = start + int(np.isfinite(rows).all(1).argmin())
                raise UserError(f"vector {row} is not finite (NaN, infinity); embed it again")

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, rows) of each block in turn."""
        for start in range(0, self.rows, size):
            yield start, self.read(start, min(start + size, self.rows))


def _fill(rows: np.ndarray, file: IO[bytes], shard: Shard, first: int) -> np.ndarray:
    """`rows`, read from a shard's file, where they begin with row `first`."""
    file.seek(shard.offset + (first - shard.start) * rows.strides[0])
    file.readinto(memoryview(rows).cast("B"))  # type: ignore[attr-defined]
    return rows


def shard_names(artifact: Artifact, below: str = "") -> list[str]:
    """The files of vectors (in a folder of the artefact); UserError where some are missing."""
    inside = (n.removeprefix(below) for n in artifact.files if n.startswith(below))
    shards = sorted(m.groups() for m in map(_SHARD.fullmatch, inside) if m)
    count = int(shards[0][1]) if shards else 0
    if [int(index) for index, _ in shards] != list(range(count)):
        raise UserError(f"{artifact.path} lacks files of vectors; make it again")
    return [f"{below}{shard_name(index, count)}" for index in range(count)]


class Windows:
    """The windows of an index's passages, in files; those of one passage are in memory."""

    def __init__(self, files: Sequence[Sequence[str]]):
        self._vectors = Vectors([vectors for vectors, _ in files])
        counts = np.concatenate([arrays.read(counts, "int32") for _, counts in files])
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def best(self, queries: np.ndarray, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The score of the best window of each query's rows; every passage has one."""
        every = np.unique(np.concatenate(rows))
        if _SHARED * len(every) > sum(map(len, rows)):
            each = zip(queries, rows, strict=True)
            return [self._best(query[None], wanted)[:, 0] for query, wanted in each]
        scores = self._best(queries, every)
        return [scores[np.searchsorted(every, row), place] for place, row in enumerate(rows)]

    def _best(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """[rows, queries]: the score of the best window of each row for each query."""
        best = np.empty((len(rows), len(queries)), np.float32)
        windows = self._vectors.slices(self._starts[rows], self._starts[rows + 1])
        for place, mine in enumerate(windows):
            (mine.astype(np.float32) @ queries.T).max(axis=0, out=best[place])
        return best
