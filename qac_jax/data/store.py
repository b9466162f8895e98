"""Writing examples: ArrayRecord files through TensorFlow Datasets.

The folder is a TFDS dataset (`tfds.builder_from_directory(folder).as_data_source("train")`), but
TFDS's own writer cannot resume an interrupted run and shuffles by hashes of keys; so TFDS
serialises the records and describes the dataset, and the shards are files of our artefact. Two
runs give the same bytes: protobuf's maps are serialised in a fixed order.

This part of TFDS can be imported without TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from qac_jax.data.building import Stored
from qac_jax.data.examples import PREFIX
from qac_jax.data.wire import LENGTHS


FILES = ("dataset_info.json", "features.json")


def token_dtype(vocab_size: int) -> str:
    """The smallest type for all ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def schema_of(vocab_size: int, stored: Stored) -> dict[str, str]:
    """Stored features and their dtypes; a list has a second feature, the lengths of its texts."""
    tokens = token_dtype(vocab_size)
    schema = dict.fromkeys(stored.texts, tokens)
    for name in stored.lists:
        schema[name] = tokens
        schema[name + LENGTHS] = "int32"
    return dict(sorted({**schema, **stored.others}.items()))


def shard_name(number: int, count: int) -> str:
    return f"{PREFIX}-{number:05d}-of-{count:05d}"


def features_of(schema: Mapping[str, str]) -> Any:
    """TFDS's description of a record: raw bytes of one-dimensional arrays."""
    from tensorflow_datasets.core import features

    bytes_ = features.Encoding.BYTES
    return features.FeaturesDict(
        {
            name: features.Tensor(shape=(None,), dtype=np.dtype(dtype), encoding=bytes_)
            for name, dtype in schema.items()
        }
    )


def write_shard(
    path: epath.PathLike, schema: Mapping[str, str], records: Iterable[Mapping[str, Any]]
) -> int:
    """Writes records of arrays, and lists of arrays or of ids, to a file; returns their number."""
    from tensorflow_datasets.core.file_adapters import ArrayRecordFileAdapter
    from tensorflow_datasets.proto import tf_example_pb2

    count = 0

    def numbered() -> Iterator[tuple[int, bytes]]:
        nonlocal count
        for record in records:
            # As TFDS's ExampleSerializer, without its checks, which take ten times as long as
            # the rest.
            proto = tf_example_pb2.Example()
            for name, array in flat(record, schema).items():
                proto.features.feature[name].bytes_list.value.append(array.tobytes())
            yield count, proto.SerializeToString(deterministic=True)
            count += 1

    ArrayRecordFileAdapter.write_examples(epath.Path(path), numbered())
    return count


def flat(record: Mapping[str, Any], schema: Mapping[str, str]) -> dict[str, np.ndarray]:
    """A list of texts as one array and their lengths (TFDS cannot read nested lists back)."""
    arrays: dict[str, np.ndarray] = {}
    for name, dtype in schema.items():
        if name in arrays:
            continue
        if name + LENGTHS in schema:
            parts = record[name]
            lengths = np.fromiter(map(len, parts), np.int32, len(parts))
            arrays[name + LENGTHS] = lengths
            together = np.concatenate(parts) if len(parts) else np.empty(0)
            arrays[name] = together.astype(dtype)
        elif not name.endswith(LENGTHS):
            arrays[name] = np.asarray(record[name], dtype).reshape(-1)
    return arrays


def describe(
    folder: epath.PathLike, schema: Mapping[str, str], shards: Sequence[int]
) -> tuple[str, ...]:
    """Writes TFDS's description beside the finished shards; returns the names of its files."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming

    folder = epath.Path(folder)
    template = naming.ShardedFileTemplate(
        data_dir=folder, dataset_name="examples", split="train", filetype_suffix="array_record"
    )
    files = [folder / shard_name(number, len(shards)) for number in range(len(shards))]
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=list(shards),
        num_bytes=sum(os.stat(file).st_size for file in files),
        filename_template=template,
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features_of(schema),
        split_infos=[split],
        version="1.0.0",
        check_data=False,
        description="Tokenised examples",
    )
    return FILES
