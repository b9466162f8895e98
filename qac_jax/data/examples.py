"""Reading examples: an artefact of kind "examples", or records in memory.

`tokenize` writes such an artefact through TFDS (`data/store.py`); here it is read without
TensorFlow and TFDS, straight from its ArrayRecord files and a block at a time. In the folder:

- `examples-train.array_record-00000-of-0000N`: one record an example, token ids without special
  tokens, as raw bytes of one-dimensional arrays; a list of texts is stored flat, with its lengths;
- `features.json`, `dataset_info.json`: TFDS's description, so that
  `tfds.builder_from_directory(folder).as_data_source("train")` reads it too;
- `documents.npy`: the document number of every example (only where documents are known);
- `tokenizer/`: the tokeniser, in Hugging Face's layout.

`info` has: `task` (the kind it was made for), `schema` (features and dtypes), `form` (special
tokens), `vocab_size`, `tokenizer`, `shards` (records in each file), `settings` (of the kind).
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.data.wire import LENGTHS, Block, Damaged, Schema
from qac_jax.errors import DataError, UserError


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
