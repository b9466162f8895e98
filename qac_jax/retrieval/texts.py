"""The texts of vectors and indexes: an artefact of passages, given or made from a corpus file.

passages = read_passages("data/scifact/corpus.jsonl")
passage_text(next(passages))           # title, blank, text
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer, stores
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import Piece, expand, plain_name, text_lines
from qac_jax.formats.files import find as find_file
from qac_jax.formats.identities import IdSet, repeated_id
from qac_jax.formats.lines import json_object, string
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import write_records
from qac_jax.formats.registry import DOCUMENTS, PAGES
from qac_jax.formats.samples import sample
from qac_jax.retrieval.vectors import TEXTS


KIND = "passages"
# What is known of a document of a folder and belongs to its hits.
KEPT = ("path", "url", "row", "columns")
# What a record has of its own, and what belongs to places in a document that is cut.
_OWN = ("_id", "title", "text", "parts")
_LINES = (".jsonl", ".ndjson", ".json", ".tsv")
BEIR, FOLDER = "beir", "folder"
TOKENS = "tokens"  # beside the formats of documents: JSON lines of token ids


def passage_text(record: Mapping[str, Any], titles: bool = True) -> str:
    """What encoders and BM25 read of a passage: title + " " + text, as in BEIR."""
    title = (record.get("title") or "").strip() if titles else ""
    return f"{title} {record['text']}" if title else record["text"]


def text_alone(record: Mapping[str, Any]) -> str:
    """A passage without its title."""
    return record["text"]


def with_contexts(text: str, record: Mapping[str, Any], count: int = 0) -> str:
    """The text followed by (the first `count`) generated queries: docT5query."""
    queries = [context["text"] for context in record["contexts"]]
    return " ".join([text, *queries[: count or len(queries)]])


def store(folder: epath.PathLike, records: Iterator[dict[str, Any]]) -> Artifact:
    """Writes records as an artefact inside the folder of another one."""
    with artifacts.create(folder, kind=KIND, replace=True) as writer:
        write_records(writer, _once(records))
        if not writer.count:
            raise UserError("there are no texts in the input; check the path and its format")
    # The lock has the process's number, which would make the folder differ from run to run.
    (epath.Path(folder) / artifacts.LOCK).unlink(missing_ok=True)
    return artifacts.load(folder)


def _once(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    known = IdSet()
    for record in records:
        if not known.add(str(record["_id"])):
            raise repeated_id(record["_id"], "is given twice")
        yield record


def keep(out: Writer, read: Callable[[], Iterator[dict[str, Any]]]) -> Artifact:
    """The texts of a file, copied once into the unfinished artefact that is made from them."""
    folder = out.path / TEXTS
    if not (folder / artifacts.COMMIT).exists():
        store(folder, read())
    artifact = artifacts.load(folder)
    out.adopt(TEXTS, identity=artifact.identity)
    return artifact


def read_passages(
    path: str, format: str = "auto", *, further: bool = False
) -> Iterator[dict[str, Any]]:
    """Records {"_id", "title", "text"} (or {"_id", "tokens"}) of a corpus in any known format.

    `further`: with all that is said of their documents beside it, such as a language and a year.
    """
    format, path = documents.source(format, path)
    format = detect(path) if format == "auto" else format
    if format == TOKENS:
        yield from read_tokens(path)
        return
    bad = BadLines()
    for document in documents.read(format, path, bad=bad):
        known = dict(document.meta) if further else {}
        for name in _OWN:
            known.pop(name, None)
        if not document.passages:
            if "path" in document.meta:
                known |= {key: document.meta[key] for key in KEPT if key in document.meta}
            yield {"_id": document.id, "title": document.title, "text": document.text, **known}
        for passage in document.passages:
            yield {"_id": passage.id, "title": passage.title, "text": passage.text, **known}
    if summary := bad.summary():
        progress.say(f"{path}: {summary}")
    bad.say_choices(path)


def read_question_records(path: str) -> Iterator[dict[str, Any]]:
    """The queries of a file as records."""
    for query in read_queries(path):
        yield {"_id": query.id, "text": query.text}


def read_tokens(path: str) -> Iterator[dict[str, Any]]:
    """JSON lines of token ids without special tokens: {"_id", "tokens": […]}.

    Tevatron's {"text_id", "text": […]} is read too.
    """
    bad = BadLines()
    for file in expand(path, (".jsonl", ".json")):
        for line in text_lines(Piece(file), bad):
            try:
                record = json_object(line.text)
                ids = record.get("tokens", record.get("text"))
                if not isinstance(ids, list) or not all(type(i) is int for i in ids):
                    raise BadRecord("'tokens' is not a list of token ids")
                yield {"_id": string(record, "_id", "text_id", "id", what="id"), "tokens": ids}
            except BadRecord as error:
                bad.add(error, line.place)


def detect(path: str) -> str:
    """The format of a corpus, by its name and first line."""
    if os.path.isdir(path) and format_of(path) == FOLDER and not _has_lines(path):
        raise UserError(
            f"{path} holds no corpus of lines (corpus.jsonl, *.jsonl, *.tsv); make passages of its "
            "files with qac prepare, format folder, and give these"
        )
    start = sample(expand(path, (".jsonl", ".tsv"))[0], path)
    if start.record and ("tokens" in start.record or isinstance(start.record.get("text"), list)):
        return TOKENS
    if name := DOCUMENTS.detect(start):
        return name
    raise UserError(
        f"{start.file} is not in a format that is recognised; name one with --format "
        f"({', '.join((*DOCUMENTS.names(), TOKENS))}), or make passages of it with qac prepare"
    )


def _has_lines(folder: str) -> bool:
    return any(plain_name(name).endswith((".jsonl", ".tsv")) for name in os.listdir(folder))


def _pages() -> set[str]:
    return {suffix for page in PAGES.all().values() for suffix in page.suffixes if suffix}


def format_of(path: str) -> str:
    """The format of what `qac prepare` reads: BEIR's layout, any folder, or a file."""
    if not os.path.isdir(path):
        page = os.path.isfile(path) and not path.lower().endswith(_LINES)
        return FOLDER if page and os.path.splitext(path)[1].lower() in _pages() else detect(path)
    return BEIR if find_file(path, "corpus.jsonl", "documents.jsonl") else FOLDER


def find(location: Mapping[str, Any], base: epath.PathLike) -> Artifact | None:
    """The texts at a location that an artefact stored; None if they were moved or changed.

    `location` has "relative" (to the folder `base`), so that folders can be moved together, and
    "path".
    """
    for place in (os.path.join(os.fspath(base), location["relative"]), location["path"]):
        stores.present(place)
        if os.path.exists(os.path.join(place, artifacts.COMMIT)):
            artifact = artifacts.load(place)
            if artifact.identity == location["identity"]:
                return artifact
    return None


def location(artifact: Artifact, base: epath.PathLike) -> dict[str, str]:
    """The location of an artefact, for `find`."""
    path = os.path.abspath(os.fspath(artifact.path))
    relative = os.path.relpath(path, os.path.abspath(os.fspath(base)))
    return {"path": path, "relative": relative, "identity": artifact.identity}
