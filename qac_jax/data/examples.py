"""Reading examples: an artefact of kind "examples", which `tokenize` writes (`data/shards.py`).

It is read without TensorFlow and TFDS. In the folder:

- `examples-train.array_record-00000-of-0000N`: one record an example, token ids without special
  tokens, as raw bytes of one-dimensional arrays; a list of texts `x` is stored flat, with
  `x_lengths` beside it;
- `features.json`, `dataset_info.json`: TFDS's description, so that TFDS reads it too;
- `documents.npy`: the document number of every example (only where documents are known);
- `tokenizer/`: the tokeniser, in Hugging Face's layout.

`info` has: `task` (the kind it was made for), `schema` (features and dtypes), `form` (special
tokens), `vocab_size`, `tokenizer`, `shards` (records in each file), `settings` (of the kind).
"""

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from etils import epath
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from qac_jax import artifacts
from qac_jax.artifacts import Artifact, arrays
from qac_jax.errors import DataError, sound


LENGTHS = "_lengths"


class Rows(Sequence[np.ndarray]):
    """A list of arrays stored one after the other; each is cut out on access."""

    def __init__(self, flat: np.ndarray, lengths: np.ndarray):
        self._flat, self._ends = flat, lengths.cumsum().tolist()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number):
        end = self._ends[number]
        return self._flat[self._ends[number - 1] if number else 0 : end]


# TensorFlow's message Example, of which only features of bytes are declared.
_PROTO = """
name: "qac_example.proto" package: "qac" syntax: "proto3"
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".qac.Features" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".qac.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
      type_name: ".qac.Feature" } } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".qac.BytesList" } }
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
"""


@functools.cache
def example_class() -> Any:
    """The class of one record's message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("qac.Example"))


class Records:
    """Reads serialised records of one schema (stored features and their dtypes)."""

    def __init__(self, schema: Mapping[str, str]):
        self._dtypes = {name: np.dtype(dtype) for name, dtype in schema.items()}
        self._lists = [name for name in schema if name + LENGTHS in schema]

    def parse(self, serialised: bytes) -> dict[str, np.ndarray | Rows]:
        """ValueError, IndexError or DecodeError for bytes that are not a record of the schema."""
        features = example_class().FromString(serialised).features.feature
        if len(features) != len(self._dtypes):
            raise ValueError(f"has the features {', '.join(sorted(features))}")
        record: dict[str, Any] = {
            name: np.frombuffer(features[name].bytes_list.value[0], dtype)
            for name, dtype in self._dtypes.items()
        }
        for name in self._lists:
            record[name] = Rows(record[name], record.pop(name + LENGTHS))
        return record


KIND = "examples"
PREFIX = "examples-train.array_record"
DOCUMENTS = "documents.npy"
TOKENIZER = "tokenizer"

# Random access, so no reading ahead. (array_record's own ArrayRecordDataSource starts a thread pool
# for each call, which triples the cost of small batches.) A worker process has one core.
_READER, _READ, _SERIAL = "readahead_buffer_size:0", 2048, ",max_parallelism:1"


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
        with sound(self.path):
            if sum(artifact.info["shards"]) != self.count or len(self._ends) != len(self.files):
                raise ValueError("its shards hold another number of examples")
            self._records = Records(artifact.info["schema"])
        self._lock, self._in_worker = threading.Lock(), False

    @property
    def tokenizer_folder(self) -> str:
        return os.path.join(self.path, TOKENIZER)

    def __getstate__(self) -> dict[str, Any]:
        left_here = ("_readers", "_lock", "documents")
        return {k: v for k, v in self.__dict__.items() if k not in left_here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._in_worker = threading.Lock(), True

    @functools.cached_property
    def documents(self) -> np.ndarray | None:
        """The document number of every example, if documents are known."""
        file = os.path.join(self.path, DOCUMENTS)
        return arrays.read(file, "int32", "int64", "uint32") if self._has_documents else None

    @functools.cached_property
    def _readers(self) -> list[Any]:
        from array_record.python.array_record_module import ArrayRecordReader

        options = _READER + (_SERIAL if self._in_worker else "")
        return [
            ArrayRecordReader(f, options=options, file_reader_buffer_size=_READ) for f in self.files
        ]

    def _bytes(self, indices: np.ndarray) -> list[bytes]:
        with self._lock:
            readers, ends = self._readers, self._ends
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
        try:
            return [self._records.parse(each) for each in self._bytes(indices)]
        except (ValueError, IndexError, DecodeError) as error:
            raise DataError(
                f"contains records of another form ({error}); tokenize again", file=self.path
            ) from error
