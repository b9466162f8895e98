"""Text artefacts: JSON lines in shards, and `offsets.npy` for random access.

An artefact of kind "passages" holds records {"_id", "doc", "position", "title", "text", …}, one of
kind "contexts" {"_id", "contexts": [{"text", "origin", "score"}, …]}. The files are called
`passages-00000-of-00004.jsonl`; their order is the order of the records. `offsets.npy` counts
bytes through the shards as if they were one file: record i is bytes offsets[i] to offsets[i + 1].
"""

import bisect
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from qac_jax import fields
from qac_jax.artifacts import Artifact, Writer, arrays, schema
from qac_jax.errors import DataError, UserError
from qac_jax.formats.identities import IdIndex


Record = dict[str, Any]

OFFSETS = "offsets.npy"

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.jsonl")
_BLOCK = 1 << 22
_FIRST_ID = re.compile(rb'\{"_id":\s?"([^"\\]*)"')


def shard_name(name: str, index: int, count: int) -> str:
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def encode(record: Mapping[str, Any]) -> bytes:
    """One line. `_id` should come first: ids are then read without parsing the whole line."""
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return line.encode() + b"\n"


def write_lines(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> Record:
    """Writes one file in any process: {"records": count, "sha256": hash}, for `Writer.keep`."""
    digest, count = hashlib.sha256(), 0
    with open(path, "wb", buffering=1 << 20) as file:
        for record in records:
            line = encode(record)
            digest.update(line)
            file.write(line)
            count += 1
    return {"records": count, "sha256": digest.hexdigest()}


def write_records(
    writer: Writer, records: Iterable[Mapping[str, Any]], name: str = "passages"
) -> int:
    """Writes all records in order as one shard, their offsets and the artefact's count."""
    shard = shard_name(name, 0, 1)
    writer.keep(shard, write_lines(writer.part(shard), records))
    return write_offsets(writer, name, 1)


def write_offsets(writer: Writer, name: str, shards: int) -> int:
    """The last, global step when the shards were written one by one; sets the writer's count."""
    pieces = [np.zeros(1, np.uint64)]
    start = 0
    for index in range(shards):
        path = os.fspath(writer.path / shard_name(name, index, shards))
        pieces.extend(ends + np.uint64(start) for ends in _line_ends(path))
        start += os.path.getsize(path)
    offsets = np.concatenate(pieces)
    writer.write_array(OFFSETS, offsets)
    writer.count = len(offsets) - 1
    return writer.count


class Records(Sequence[Record]):
    """The records of a finished artefact, none in memory; can be sent to other processes."""

    def __init__(self, artifact: Artifact, name: str | None = None):
        shards = sorted(m.groups() for m in map(_SHARD.fullmatch, artifact.files) if m)
        names = {shard[0] for shard in shards}
        if name is None and len(names) != 1:
            held = ", ".join(sorted(names)) or "none"
            raise UserError(f"{artifact.path} does not hold one kind of text records ({held})")
        self.name = name or names.pop()
        self._paths = [
            os.fspath(artifact.path / shard_name(base, int(index), int(count)))
            for base, index, count in shards
            if base == self.name
        ]
        self._offsets_path, self._count = os.fspath(artifact.file(OFFSETS)), artifact.count
        self._open()

    def _open(self) -> None:
        self._opened: dict[int, IO[bytes]] = {}  # shards, at the first record that is asked for
        sizes = [os.path.getsize(path) for path in self._paths]
        self._starts = list(itertools.accumulate(sizes, initial=0))
        self._offsets = arrays.read_offsets(self._offsets_path, self._starts[-1], self._count)
        self._index: IdIndex | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = ("name", "_paths", "_offsets_path", "_count")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, item: Any) -> Any:
        """A record by its number, or a list of those of a slice."""
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        index = int(item)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"record {item} of {len(self)}")
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        shard = bisect.bisect_right(self._starts, begin) - 1
        line = os.pread(self._file(shard).fileno(), end - begin, begin - self._starts[shard])
        return self._parse(line, index)

    def _file(self, shard: int) -> IO[bytes]:
        """A shard, opened; its first record is of the type that it should be."""
        if (file := self._opened.get(shard)) is None:
            file = self._opened[shard] = open(self._paths[shard], "rb")
            index = int(np.searchsorted(self._offsets, np.uint64(self._starts[shard])))
            if not fields.fits(self[index], schema.RECORDS.get(self.name, {})):
                raise self._damaged("not a record of this kind", index)
        return file

    def __del__(self) -> None:
        for file in self.__dict__.get("_opened", {}).values():
            file.close()

    def __iter__(self) -> Iterator[Record]:
        return self.range(0, len(self))

    def range(self, start: int, stop: int) -> Iterator[Record]:
        """Records start to stop - 1, read one after the other: a worker's part."""
        for index, line in zip(range(start, stop), self._lines(start), strict=False):
            yield self._parse(line, index)

    def ids(self) -> Iterator[str]:
        """The `_id` of every record, in order, without parsing the rest of the line."""
        for index, line in enumerate(self._lines(0)):
            match = _FIRST_ID.match(line)
            yield match[1].decode() if match else self._parse(line, index)["_id"]

    def positions(self, ids: Iterable[str]) -> list[int | None]:
        """Where these ids are (None: nowhere). The first call reads all ids: 16 bytes each."""
        if self._index is None:
            self._index = IdIndex(self.ids())
        index = self._index
        return [next((at for at in index.candidates(i) if self[at]["_id"] == i), None) for i in ids]

    def _lines(self, start: int) -> Iterator[bytes]:
        if start >= len(self):
            return
        begin = int(self._offsets[start])
        first = bisect.bisect_right(self._starts, begin) - 1
        for shard in range(first, len(self._paths)):
            if self._starts[shard] < self._starts[shard + 1]:
                self._file(shard)
            with open(self._paths[shard], "rb") as file:
                file.seek(max(0, begin - self._starts[shard]))
                yield from file

    def _parse(self, line: bytes, index: int) -> Record:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"not a JSON record ({error})", index) from error

    def _damaged(self, how: str, index: int) -> DataError:
        shard = bisect.bisect_right(self._starts, int(self._offsets[index])) - 1
        first = int(np.searchsorted(self._offsets, np.uint64(self._starts[shard])))
        how, line = f"{how}; the artefact is damaged, make it again", index - first + 1
        return DataError(how, file=self._paths[shard], line=line)


def _line_ends(path: str) -> Iterator[np.ndarray]:
    """Offsets just behind every line of a file, block by block."""
    position = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            yield (ends + (position + 1)).astype(np.uint64)
            position += len(block)
