"""A TensorFlow dataset by name, such as wikipedia/20230601.en."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard
from qac_jax.formats.readers import named


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return named.ranges(path, len(opened(path, options["split"], options["data_dir"])), count)


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    source = opened(shard.path, shard.option("split"), shard.option("data_dir"))
    # One record at a time costs several times as much as a block.
    return named.read(shard, bad, lambda a, b: source.__getitems__(range(a, b)))


@functools.lru_cache(maxsize=2)
def opened(name: str, split: str, data_dir: str) -> Any:
    tfds = named.library("tensorflow_datasets", "tensorflow-datasets")

    def load() -> Any:
        builder = tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
        builder.download_and_prepare()
        return builder.as_data_source(split=split)

    return named.loaded("the TensorFlow data set", name, load)


FORMAT = DocumentFormat(
    share,
    read,
    by_name=True,
    options={"split": "train", "data_dir": "", "id": "", "title": "", "text": ""},
)
