"""Data sets by name, through the libraries that know them, where those are installed: the Hugging
Face Hub, ir_datasets.

A shard is a range of record numbers; every process opens the data set itself.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qac_jax.errors import UserError
from qac_jax.formats.bad_lines import BadLines, BadRecord, Place
from qac_jax.formats.documents import Document, DocumentFormat, Passage, Pieces, Section, Shard
from qac_jax.formats.files import Line, Piece
from qac_jax.formats.judgements import Judgement, JudgementFormat
from qac_jax.formats.queries import Query, QueryFormat
from qac_jax.formats.readers.documents import document_of


# Records are counted, not bytes: about what 64 MB of passages hold.
_SHARD_RECORDS = 100_000


def _ranges(path: str, records: int, count: int | None) -> Pieces:
    count = min(count or math.ceil(records / _SHARD_RECORDS), records)
    bounds = [records * i // max(1, count) for i in range(count + 1)]
    return [(Piece(path, a, b),) for a, b in zip(bounds, bounds[1:], strict=False)]


def _opened(module: str, name: str, load: Callable[[Any], Any]) -> Any:
    """What `load` gets of a library; each has errors of its own for names, network and disk."""
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"reading data sets by name needs {module}, which is not installed; run "
            f"`pip install {module}`"
        ) from error
    try:
        return load(library)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name!r} cannot be loaded by {module} ({type(error).__name__}: {reason}); check the "
            "name and the network, or give its files with another --format"
        ) from error


# The Hugging Face Hub, such as wikimedia/wikipedia:20231101.en@REVISION.


@functools.lru_cache(maxsize=2)
def _hub_data(name: str, split: str) -> Any:
    whole, _, revision = name.partition("@")
    path, _, config = whole.partition(":")
    more = {"revision": revision} if revision else {}
    return _opened(
        "datasets",
        name,
        lambda datasets: datasets.load_dataset(path, config or None, split=split, **more),
    )


def _share_hub(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return _ranges(path, len(_hub_data(path, options["split"])), count)


def _read_hub(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Texts and numbers of the records, as JSON knows them."""
    table = _hub_data(shard.path, shard.options["split"])
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


# ir_datasets: documents of a collection such as msmarco-passage, queries and judgements of a data
# set such as beir/scifact/test.


def _collection(name: str, load: Callable[[Any], Any]) -> Any:
    """What `load` asks of a collection, which is fetched at the first question about it."""
    return _opened("ir_datasets", name, lambda ir: load(ir.load(name)))


def _share_ir(path: str, count: int | None, options: Mapping[str, str]) -> Pieces:
    return _ranges(path, _collection(path, lambda whole: whole.docs_count()), count)


def _read_ir(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """Records with a body are documents; others (passages, abstracts) are judged as they are."""
    records = _collection(shard.path, lambda whole: whole.docs_iter())
    for file, start, stop in shard.pieces:
        for number, record in enumerate(records[start:stop], start + 1):
            yield _ir_document(record, Place(file, number))


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


_HUB_OPTIONS = {"split": "train", "id": "", "title": "", "text": ""}
DOCUMENT_FORMATS = {
    "hf": DocumentFormat(_share_hub, _read_hub, _HUB_OPTIONS, by_name=True),
    "ir_datasets": DocumentFormat(_share_ir, _read_ir, by_name=True),
}
QUERY_FORMATS = {"ir_datasets": QueryFormat(_ir_queries, by_name=True)}
JUDGEMENT_FORMATS = {"ir_datasets": JudgementFormat(_ir_judgements)}
