"""Data sets by name, through the libraries that know them, where those are installed.

A shard is a range of record numbers; every process opens the data set itself.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, Passage, Section, Shard, check
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.readers.jsonl import document_of


# Records are counted, not bytes: about what 64 MB of passages hold.
_SHARD_RECORDS = 100_000
_FETCH = 1024

_IR_DATASETS = "the collection of ir_datasets"

_Pieces = list[tuple[Piece, ...]]


def share_tfds(path: str, count: int | None, options: Mapping[str, str]) -> _Pieces:
    return _ranges(path, len(_tfds(path, options["split"], options["data_dir"])), count)


def read_tfds(shard: Shard, bad: BadLines) -> Iterator[Document]:
    source = _tfds(shard.path, shard.option("split"), shard.option("data_dir"))
    # One record at a time costs several times as much as a block.
    return _read(shard, bad, lambda a, b: source.__getitems__(range(a, b)))


def share_huggingface(path: str, count: int | None, options: Mapping[str, str]) -> _Pieces:
    return _ranges(path, len(_huggingface(path, options["split"])), count)


def read_huggingface(shard: Shard, bad: BadLines) -> Iterator[Document]:
    table = _huggingface(shard.path, shard.option("split"))
    return _read(shard, bad, lambda a, b: (table[i] for i in range(a, b)))


def share_ir_datasets(path: str, count: int | None, options: Mapping[str, str]) -> _Pieces:
    # The collection is fetched here, at the first question about its contents.
    records = _loaded(_IR_DATASETS, path, lambda: _ir_datasets(path).docs_count())
    return _ranges(path, records, count)


def read_ir_datasets(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Records with a body are documents; others (passages, abstracts) are judged as they are."""
    collection = _ir_datasets(shard.path)
    for piece in shard.pieces:
        records = _loaded(_IR_DATASETS, shard.path, functools.partial(_begun, collection, piece))
        for number, record in enumerate(records):
            place = Place(piece.file, piece.start + number + 1)
            try:
                yield check(_judged(record, place))
            except BadRecord as error:
                bad.add(error, place)


def _begun(collection: Any, piece: Piece) -> Iterator[Any]:
    """A range of records; the first is read at once, so that a failure to load shows here."""
    records = iter(collection.docs_iter()[piece.start : piece.stop])
    return itertools.chain(list(itertools.islice(records, 1)), records)


def _judged(record: Any, place: Place) -> Document:
    fields = record._asdict()
    name, title = str(fields.pop("doc_id")), str(fields.pop("title", "") or "")
    if "body" in fields:
        sections = (Section("", str(fields.pop("body"))),)
        meta = {"url": fields["url"]} if fields.get("url") else {}
        return Document(name, title, sections, source="ir_datasets", meta=meta, place=place)
    text = fields["text"] if isinstance(fields.get("text"), str) else record.default_text()
    passages = (Passage(name, title, text),)
    return Document(name, title, passages=passages, source="ir_datasets", place=place)


def _read(shard: Shard, bad: BadLines, fetch: Callable[[int, int], Any]) -> Iterator[Document]:
    keys = {name: shard.option(name) for name in ("id", "title", "text")}
    for piece in shard.pieces:
        stop = piece.stop or 0
        for begin in range(piece.start, stop, _FETCH):
            records = fetch(begin, min(begin + _FETCH, stop))
            for number, record in enumerate(records, start=begin):
                place = Place(piece.file, number + 1)
                try:
                    yield check(document_of(_plain(record), keys, Line("", place, number)))
                except BadRecord as error:
                    bad.add(error, place)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Texts and numbers of a record, as JSON knows them."""
    plain = {}
    for key, value in record.items():
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                raise BadRecord(f"{key!r} is not UTF-8: byte 0x{value[error.start]:02x}") from None
        if isinstance(value, str | int | float):
            plain[key] = value
    return plain


def _ranges(path: str, records: int, count: int | None) -> _Pieces:
    count = min(count or math.ceil(records / _SHARD_RECORDS), records)
    bounds = [records * i // max(1, count) for i in range(count + 1)]
    return [(Piece(path, a, b),) for a, b in zip(bounds, bounds[1:], strict=False)]


@functools.lru_cache(maxsize=2)
def _tfds(name: str, split: str, data_dir: str) -> Any:
    tfds = _library("tensorflow_datasets", "tensorflow-datasets")

    def load() -> Any:
        builder = tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
        builder.download_and_prepare()
        return builder.as_data_source(split=split)

    return _loaded("the TensorFlow data set", name, load)


@functools.lru_cache(maxsize=2)
def _huggingface(name: str, split: str) -> Any:
    datasets = _library("datasets", "datasets")
    path, _, config = name.partition(":")
    return _loaded(
        "the Hugging Face data set",
        name,
        lambda: datasets.load_dataset(path, config or None, split=split),
    )


@functools.lru_cache(maxsize=2)
def _ir_datasets(name: str) -> Any:
    library = _library("ir_datasets", "ir_datasets")
    return _loaded(_IR_DATASETS, name, lambda: library.load(name))


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"reading data sets by name needs {module}, which is not installed; run "
            f"`pip install {package}`"
        ) from error


def _loaded(what: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except UserError:
        raise
    except Exception as error:  # each library has errors of its own for names, network and disk
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{what} {name!r} cannot be loaded ({type(error).__name__}: {reason}); check the name "
            f"and the network, or give its files with another --format"
        ) from error
