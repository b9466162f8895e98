"""Data sets of the Hugging Face Hub by name, where its package `datasets` is installed.

A shard is a range of record numbers; every process opens the data set itself.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, DocumentFormat, Pieces, Shard
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.readers.documents import document_of


# Records are counted, not bytes: about what 64 MB of passages hold.
_SHARD_RECORDS = 100_000


@functools.lru_cache(maxsize=2)
def _data(name: str, split: str) -> Any:
    """Such as wikimedia/wikipedia:20231101.en@REVISION."""
    try:
        import datasets
    except ImportError as error:
        raise UserError("this needs datasets; run `pip install datasets`") from error
    whole, _, revision = name.partition("@")
    path, _, config = whole.partition(":")
    more = {"revision": revision} if revision else {}
    try:
        return datasets.load_dataset(path, config or None, split=split, **more)
    except Exception as error:  # each cause has one of its own
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{name!r} cannot be loaded ({type(error).__name__}: {reason})") from error


def _share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    records = len(_data(path, options["split"]))
    count = min(count or math.ceil(records / _SHARD_RECORDS), records)
    bounds = [records * i // max(1, count) for i in range(count + 1)]
    return [(Piece(path, a, b),) for a, b in zip(bounds, bounds[1:], strict=False)]


def _read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Texts and numbers of the records, as JSON knows them."""
    table = _data(shard.path, shard.options["split"])
    for file, start, stop in shard.pieces:
        for number, record in enumerate(table.select(range(start, stop or 0)), start):
            plain = {k: v for k, v in record.items() if isinstance(v, str | int | float)}
            line = Line("", Place(file, number + 1), number)
            try:
                document = document_of(plain, shard.options, line)
            except BadRecord as error:
                bad.add(error, line.place)
                continue
            yield document


_OPTIONS = {"split": "train", "id": "", "title": "", "text": ""}
DOCUMENT_FORMATS = {"hf": DocumentFormat(_share, _read, _OPTIONS, by_name=True)}
