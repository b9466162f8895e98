"""A data set of the Hugging Face Hub, such as wikimedia/wikipedia:20231101.en@REVISION."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.formats.bad_lines import BadLines
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard
from qac_jax.formats.readers import named


def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return named.ranges(path, len(opened(path, options["split"])), count)


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    table = opened(shard.path, shard.option("split"))
    return named.read(shard, bad, lambda a, b: (table[i] for i in range(a, b)))


@functools.lru_cache(maxsize=2)
def opened(name: str, split: str) -> Any:
    datasets = named.library("datasets", "datasets")
    whole, _, revision = name.partition("@")
    path, _, config = whole.partition(":")
    more = {"revision": revision} if revision else {}
    return named.loaded(
        "the Hugging Face data set",
        name,
        lambda: datasets.load_dataset(path, config or None, split=split, **more),
    )


FORMAT = DocumentFormat(
    share, read, by_name=True, options={"split": "train", "id": "", "title": "", "text": ""}
)
