"""Reading examples: an artefact of kind "examples", or records in memory.

`tokenize` writes such an artefact through TFDS (`data/shards.py`); here it is read without
TensorFlow and TFDS, straight from its ArrayRecord files and a block at a time. In the folder:

- `examples-train.array_record-00000-of-0000N`: one record an example, token ids without special
  tokens, as raw bytes of one-dimensional arrays; a list of texts `x` is stored flat, with
  `x_lengths` beside it;
- `features.json`, `dataset_info.json`: TFDS's description, so that
  `tfds.builder_from_directory(folder).as_data_source("train")` reads it too;
- `documents.npy`: the document number of every example (only where documents are known);
- `tokenizer/`: the tokeniser, in Hugging Face's layout.

`info` has: `task` (the kind it was made for), `schema` (features and dtypes), `form` (special
tokens), `vocab_size`, `tokenizer`, `shards` (records in each file), `settings` (of the kind).

Protobuf's deterministic serialisation puts the features in one order in all records. So a record is
a fixed sequence of keys and lengths, and a few numpy operations compute the positions of all
features of a whole block; a Python protobuf parser would take longer than the rest of the loader.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import DataError, UserError


LENGTHS = "_lengths"
_DELIMITED_1, _DELIMITED_2 = 0x0A, 0x12  # tags: field 1 or 2, length-delimited


class Damaged(ValueError):
    """The bytes are not a record of this schema."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """Stored features and their dtypes."""

    dtypes: Mapping[str, np.dtype]

    @classmethod
    def of(cls, dtypes: Mapping[str, str]) -> Schema:
        return cls({name: np.dtype(dtype) for name, dtype in dtypes.items()})

    @functools.cached_property
    def lists(self) -> tuple[str, ...]:
        """Features that are lists of arrays."""
        return tuple(n for n in self.dtypes if n + LENGTHS in self.dtypes)


class Rows(Sequence[np.ndarray]):
    """A list of arrays within a block's buffer; each array is made on access."""

    __slots__ = ("_block", "_column", "_first", "_count", "_start")

    def __init__(self, block: Block, column: Column, row: int):
        self._block, self._column = block, column
        self._first, self._count = column.firsts[row], column.counts[row]
        self._start = column.starts[row]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number):
        if not 0 <= number < self._count:
            raise IndexError(number)
        column, first = self._column, self._first
        ends, place = column.ends, first + number
        begin = ends[place]
        return np.frombuffer(
            self._block.buffer,
            column.dtype,
            ends[place + 1] - begin,
            self._start + (begin - ends[first]) * column.width,
        )


@dataclasses.dataclass(slots=True)
class Column:
    """The positions of one feature in all records of a block.

    For a list, `ends` are the ends of its arrays, counted in items over the whole block, and
    `firsts` the number of the first array of each record.
    """

    dtype: np.dtype
    width: int
    starts: list[int]
    counts: list[int]
    ends: list[int] = dataclasses.field(default_factory=list)
    firsts: list[int] = dataclasses.field(default_factory=list)


class Record(Mapping[str, np.ndarray | Rows]):
    """One record of a block; features are made on access."""

    __slots__ = ("_block", "_row")

    def __init__(self, block: Block, row: int):
        self._block, self._row = block, row

    def __getitem__(self, name: str) -> np.ndarray | Rows:
        block, row = self._block, self._row
        column = block.table[name]
        if column.ends:
            return Rows(block, column, row)
        return np.frombuffer(block.buffer, column.dtype, column.counts[row], column.starts[row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.table)

    def __len__(self) -> int:
        return len(self._block.table)


class Block:
    """Some serialised records, parsed together."""

    def __init__(self, records: Sequence[bytes], schema: Schema):
        self.buffer = b"".join(records)
        self._count = len(records)
        # A few zeros at the end, so that reading a length never exceeds the buffer.
        data = np.frombuffer(self.buffer + bytes(16), np.uint8)
        sizes = np.fromiter(map(len, records), np.int64, self._count)
        ends = np.cumsum(sizes)
        places = _positions(data, ends - sizes, ends, _names(data, sizes, schema))
        self.table = {
            name: self._column(data, name, places, schema)
            for name in schema.dtypes
            if not (name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in schema.lists)
        }

    def __len__(self) -> int:
        return self._count

    def records(self) -> list[Record]:
        return [Record(self, row) for row in range(self._count)]

    def _column(
        self,
        data: np.ndarray,
        name: str,
        places: Mapping[str, tuple[np.ndarray, np.ndarray]],
        schema: Schema,
    ) -> Column:
        dtype = schema.dtypes[name]
        starts, sizes = places[name]
        if name not in schema.lists:
            counts = sizes // dtype.itemsize
            return Column(dtype, dtype.itemsize, starts.tolist(), counts.tolist())
        wide = schema.dtypes[name + LENGTHS]
        begins, counts = places[name + LENGTHS]
        counts = counts // wide.itemsize
        firsts = np.cumsum(counts) - counts
        offsets = np.repeat(begins - firsts * wide.itemsize, counts)
        offsets += np.arange(counts.sum()) * wide.itemsize
        lengths = np.zeros(len(offsets), np.int64)
        for byte in range(wide.itemsize):
            lengths |= data[offsets + byte].astype(np.int64) << (8 * byte)
        ends = np.concatenate(([0], np.cumsum(lengths)))
        return Column(
            dtype, dtype.itemsize, starts.tolist(), counts.tolist(), ends.tolist(), firsts.tolist()
        )


def _names(data: np.ndarray, sizes: np.ndarray, schema: Schema) -> list[str]:
    """The features in the order of the first record."""
    if not len(sizes):
        return list(schema.dtypes)
    names: list[str] = []
    place, _ = _delimited(data, np.zeros(1, np.int64), _DELIMITED_1)
    while place[0] < sizes[0]:
        key, entry = _delimited(data, place, _DELIMITED_1)
        key_start, key_size = _delimited(data, key, _DELIMITED_1)
        names.append(bytes(data[key_start[0] : key_start[0] + key_size[0]]).decode())
        place = key + entry
    _expect(sorted(names) == sorted(schema.dtypes))
    return names


def _positions(
    data: np.ndarray, place: np.ndarray, ends: np.ndarray, names: Sequence[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Start and size in bytes of every feature of every record.

    Example { 1: Features { 1: entry { 1: key  2: Feature { 1: BytesList { 1: value } } } … } }
    """
    positions = {}
    place, _ = _delimited(data, place, _DELIMITED_1)
    for name in names:
        key = name.encode()
        place, _ = _delimited(data, place, _DELIMITED_1)
        place, size = _delimited(data, place, _DELIMITED_1)
        _expect((size == len(key)).all())
        _expect(all((data[place + i] == byte).all() for i, byte in enumerate(key)))
        place, _ = _delimited(data, place + len(key), _DELIMITED_2)
        place, _ = _delimited(data, place, _DELIMITED_1)
        place, size = _delimited(data, place, _DELIMITED_1)
        positions[name] = (place, size)
        place = place + size
    _expect((place == ends).all())
    return positions


def _delimited(data: np.ndarray, place: np.ndarray, tag: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads a tag and a length: (position of the content, size of the content)."""
    _expect((place < len(data) - 8).all() and (data[place] == tag).all())
    place = place + 1
    size = np.zeros(len(place), np.int64)
    going = np.ones(len(place), bool)
    for shift in (0, 7, 14, 21, 28):
        byte = data[place].astype(np.int64)
        size |= np.where(going, (byte & 0x7F) << shift, 0)
        place = place + going
        going &= byte >= 0x80
        if not going.any():
            return place, size
    raise Damaged("a length has more than five bytes")


def _expect(truth: bool | np.bool_) -> None:
    if not truth:
        raise Damaged("not a record of this schema")


KIND = "examples"
PREFIX = "examples-train.array_record"
DOCUMENTS = "documents.npy"
TOKENIZER = "tokenizer"

# Random access, so no reading ahead. (array_record's own ArrayRecordDataSource starts a thread pool
# for each call, which triples the cost of small batches.)
_READER, _READ = "readahead_buffer_size:0", 2048
# A worker process has one core, so threads would only cost it time.
_SERIAL = ",max_parallelism:1"


class Source(Protocol):
    """Random access to records: what the loader reads from."""

    count: int
    identity: str
    info: Mapping[str, Any]

    @property
    def documents(self) -> np.ndarray | None: ...

    def read(self, indices: np.ndarray) -> Sequence[Mapping[str, Any]]: ...


class Examples:
    """The records of a finished examples artefact."""

    def __init__(self, artifact: Artifact | epath.PathLike):
        if not isinstance(artifact, Artifact):
            artifact = artifacts.load(artifact, kind=KIND)
        self.path = os.fspath(artifact.path)
        self.count: int = artifact.count
        self.identity: str = artifact.identity
        self.info: Mapping[str, Any] = artifact.info
        self.files = [os.fspath(f) for f in artifact.matching(PREFIX)]
        self._ends = np.cumsum(artifact.info["shards"])
        self._has_documents = DOCUMENTS in artifact.files
        self._schema = Schema.of(artifact.info["schema"])
        self._lock, self._in_worker = threading.Lock(), False

    def __repr__(self) -> str:
        return f"Examples({self.path}, {self.count} of {self.info['task']})"

    @property
    def tokenizer_folder(self) -> str:
        """The tokeniser whose ids these are, in Hugging Face's layout."""
        return os.path.join(self.path, TOKENIZER)

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes, without open files and locks."""
        return {
            k: v for k, v in self.__dict__.items() if k not in ("_readers", "_lock", "documents")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._in_worker = threading.Lock(), True

    @functools.cached_property
    def documents(self) -> np.ndarray | None:
        """The document number of every example, if documents are known."""
        if not self._has_documents:
            return None
        return np.load(os.path.join(self.path, DOCUMENTS), mmap_mode="r")

    @functools.cached_property
    def _readers(self) -> list[Any]:
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as error:
            raise UserError(
                f"reading {self.path} needs the package array_record; pip install array_record"
            ) from error
        options = _READER + (_SERIAL if self._in_worker else "")
        return [
            ArrayRecordReader(f, options=options, file_reader_buffer_size=_READ) for f in self.files
        ]

    def read_bytes(self, indices: np.ndarray) -> list[bytes]:
        """The serialised records, fetched together."""
        with self._lock:
            readers, ends = self._readers, self._ends
        if len(readers) == 1:
            return readers[0].read(indices.tolist())
        fetched: list[bytes] = [b""] * len(indices)
        files = np.searchsorted(ends, indices, side="right")
        for number in np.unique(files).tolist():
            places = np.flatnonzero(files == number)
            first = ends[number - 1] if number else 0
            records = readers[number].read((indices[places] - first).tolist())
            for place, record in zip(places.tolist(), records, strict=True):
                fetched[place] = record
        return fetched

    def read(self, indices: np.ndarray) -> Sequence[Mapping[str, Any]]:
        """The records of these numbers, fetched and parsed together."""
        try:
            return Block(self.read_bytes(indices), self._schema).records()
        except Damaged as error:
            raise DataError(
                f"contains records of another form ({error}); tokenize again", file=self.path
            ) from error


class MemoryExamples:
    """Records in memory with the same interface, for tests and small experiments."""

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        info: Mapping[str, Any],
        documents: Sequence[int] | np.ndarray | None = None,
    ):
        self._records, self.info, self.count = list(records), info, len(records)
        self.documents = None if documents is None else np.asarray(documents)
        self.identity = hashlib.sha256(repr((self._records, dict(info))).encode()).hexdigest()

    def read(self, indices: np.ndarray) -> Sequence[Mapping[str, Any]]:
        return [self._records[i] for i in indices]


def check_holds(source: Source, kind: str, needs: Sequence[str]) -> None:
    """Raises UserError for a kind that needs features which the artefact does not have."""
    schema = source.info["schema"]
    for name in needs:
        if name not in schema:
            raise UserError(
                f"examples made for {source.info['task']!r} hold no {name!r}, which kind {kind!r} "
                f"needs (they hold {', '.join(n for n in schema if not n.endswith(LENGTHS))}); "
                f"tokenize again for {kind!r}, or choose another kind"
            )
