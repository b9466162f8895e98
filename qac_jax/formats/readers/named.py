"""Data sets by name, through the libraries that know them, where those are installed: the Hugging
Face Hub, TensorFlow Datasets, ir_datasets.

A shard is a range of record numbers; every process opens the data set itself.
"""

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import (
    Document,
    DocumentFormat,
    Passage,
    Pieces,
    Section,
    Shard,
    checked,
)
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.judgements import Judgement, JudgementFormat
from qac_jax.formats.queries import Query, QueryFormat
from qac_jax.formats.readers.documents import document_of


# Records are counted, not bytes: about what 64 MB of passages hold.
_SHARD_RECORDS = 100_000
_FETCH = 1024
_KEYS = {"id": "", "title": "", "text": ""}


def _format(
    load: Callable[[str, Mapping[str, str]], Any], options: dict[str, str]
) -> DocumentFormat:
    """A table of records that `load` opens; options name the keys of id, title and text too."""

    def share(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
        return _ranges(path, len(load(path, options)), count)

    def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
        table = load(shard.path, shard.options)
        for piece in shard.pieces:
            stop = piece.stop or 0
            for begin in range(piece.start, stop, _FETCH):
                numbers = range(begin, min(begin + _FETCH, stop))
                # One record at a time costs several times as much as a block.
                block = getattr(table, "__getitems__", lambda some: (table[i] for i in some))
                for number, record in zip(numbers, block(numbers), strict=True):
                    line = Line("", Place(piece.file, number + 1), number)
                    make = functools.partial(_document, record, shard.options, line)
                    yield from checked(make, line.place, bad)

    return DocumentFormat(share, read, {"split": "train", **options, **_KEYS}, by_name=True)


def _document(record: Mapping[str, Any], keys: Mapping[str, str], line: Line) -> Document:
    return document_of(_plain(record), keys, line)


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


def _ranges(path: str, records: int, count: int | None) -> Pieces:
    count = min(count or math.ceil(records / _SHARD_RECORDS), records)
    bounds = [records * i // max(1, count) for i in range(count + 1)]
    return [(Piece(path, a, b),) for a, b in zip(bounds, bounds[1:], strict=False)]


def _opened(what: str, module: str, name: str, load: Callable[[Any], Any]) -> Any:
    """What `load` gets of a library; each has errors of its own for names, network and disk."""
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        package = module.replace("tensorflow_datasets", "tensorflow-datasets")
        raise UserError(
            f"reading data sets by name needs {module}, which is not installed; run "
            f"`pip install {package}`"
        ) from error
    try:
        return load(library)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        remedy = f"; {extras.remedy('seqio')}" if "tensorflow" in str(error) else ""
        raise UserError(
            f"{what} {name!r} needs {error.name}, which is not installed{remedy}"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{what} {name!r} cannot be loaded ({type(error).__name__}: {reason}); check the name "
            f"and the network, or give its files with another --format"
        ) from error


# The Hugging Face Hub, such as wikimedia/wikipedia:20231101.en@REVISION.


@functools.lru_cache(maxsize=2)
def _hub_data(name: str, split: str) -> Any:
    whole, _, revision = name.partition("@")
    path, _, config = whole.partition(":")
    more = {"revision": revision} if revision else {}
    return _opened(
        "the Hugging Face data set",
        "datasets",
        name,
        lambda datasets: datasets.load_dataset(path, config or None, split=split, **more),
    )


# TensorFlow Datasets, such as wikipedia/20230601.en.


@functools.lru_cache(maxsize=2)
def _tfds_data(name: str, split: str, data_dir: str) -> Any:
    def load(tfds: Any) -> Any:
        builder = tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
        builder.download_and_prepare()
        return builder.as_data_source(split=split)

    return _opened("the TensorFlow data set", "tensorflow_datasets", name, load)


# ir_datasets: documents of a collection such as msmarco-passage, queries and judgements of a data
# set such as beir/scifact/test.


def _collection(name: str, load: Callable[[Any], Any]) -> Any:
    """What `load` asks of a collection, which is fetched at the first question about it."""
    return _opened(
        "the collection of ir_datasets", "ir_datasets", name, lambda ir: load(ir.load(name))
    )


def _share_ir(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return _ranges(path, _collection(path, lambda whole: whole.docs_count()), count)


def _read_ir(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Records with a body are documents; others (passages, abstracts) are judged as they are."""
    for piece in shard.pieces:
        records = _collection(shard.path, functools.partial(_begun, piece))
        for number, record in enumerate(records, piece.start + 1):
            place = Place(piece.file, number)
            yield from checked(functools.partial(_ir_document, record, place), place, bad)


def _begun(piece: Piece, whole: Any) -> Iterator[Any]:
    """A range of records; the first is read at once, so that a failure to load shows here."""
    rest = iter(whole.docs_iter()[piece.start : piece.stop])
    return itertools.chain(list(itertools.islice(rest, 1)), rest)


def _ir_document(record: Any, place: Place) -> Document:
    fields = record._asdict()
    name, title = str(fields.pop("doc_id")), str(fields.pop("title", "") or "")
    if "body" in fields:
        sections = (Section("", str(fields.pop("body"))),)
        meta = {"url": fields["url"]} if fields.get("url") else {}
        return Document(name, title, sections, source="ir_datasets", meta=meta, place=place)
    text = fields["text"] if isinstance(fields.get("text"), str) else record.default_text()
    passages = (Passage(name, title, text),)
    return Document(name, title, passages=passages, source="ir_datasets", place=place)


def _ir_queries(name: str, bad: BadLines) -> Iterator[Query]:
    """The text of a query is its title, where it has one (TREC topics)."""
    del bad  # the library raises where a record is damaged
    records = _collection(name, lambda whole: list(whole.queries_iter()))
    for number, record in enumerate(records, start=1):
        fields = record._asdict()
        text = fields.get("text") or fields.get("title") or record.default_text()
        yield Query(str(record.query_id), str(text), place=Place(name, number))


def _ir_judgements(name: str) -> Iterator[Judgement]:
    for record in _collection(name, lambda whole: list(whole.qrels_iter())):
        yield Judgement(str(record.query_id), str(record.doc_id), int(record.relevance))


DOCUMENT_FORMATS = {
    "hf": _format(lambda path, options: _hub_data(path, options["split"]), {}),
    "ir_datasets": DocumentFormat(_share_ir, _read_ir, by_name=True),
    "tfds": _format(
        lambda path, options: _tfds_data(path, options["split"], options["data_dir"]),
        {"data_dir": ""},
    ),
}
QUERY_FORMATS = {"ir_datasets": QueryFormat(_ir_queries, by_name=True)}
JUDGEMENT_FORMATS = {"ir_datasets": JudgementFormat(_ir_judgements)}
