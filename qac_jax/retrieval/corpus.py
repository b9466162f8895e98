"""The passages of an index: how a corpus is read, their ids and texts, and hits for questions."""

from __future__ import annotations

import abc
import dataclasses
import functools
import mmap
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer, arrays
from qac_jax.errors import UserError
from qac_jax.formats import documents
from qac_jax.formats.bad_lines import BadLines, BadRecord
from qac_jax.formats.files import Line, expand, is_file, json_object, parsed, plain_name, string
from qac_jax.formats.files import find as find_file
from qac_jax.formats.identities import IdSet, repeated_id
from qac_jax.formats.records import Records, write_records
from qac_jax.formats.registry import DOCUMENTS, PAGES, sample
from qac_jax.formats.runs import Ranking, Run, ranked
from qac_jax.text.passages import Cutter, Cutting
from qac_jax.text.tokenizers import Tokenizer


PASSAGES = "passages"  # the kind of an artefact
TEXTS = "texts"  # its folder in an artefact that is made of a file
# The ids of an index's rows, one a line, for people too; where each line begins, for random access.
IDS, IDS_OFFSETS = "ids.txt", "ids_offsets.npy"
BEIR, FOLDER = "beir", "folder"
TOKENS = "tokens"  # beside the formats of documents: JSON lines of token ids
# What is known of a document of a folder and belongs to its hits.
_KEPT = ("path", "url", "row", "columns")
_SHOWN = 320  # characters of a hit's text in a notebook
_LINES = (".jsonl", ".ndjson", ".tsv")


def passage_text(record: Mapping[str, Any], titles: bool = True) -> str:
    """The text of a passage for encoders and BM25: title + " " + text, as in BEIR."""
    title = (record.get("title") or "").strip() if titles else ""
    return f"{title} {record['text']}" if title else record["text"]


def keep(out: Writer, read: Callable[[], Iterator[dict[str, Any]]]) -> Artifact:
    """The texts of a file, copied once into the unfinished artefact that is made from them."""
    folder = out.path / TEXTS
    if not (folder / artifacts.COMMIT).exists():
        store(out.begin(TEXTS), read())
    artifact = artifacts.load(folder)
    out.adopt(TEXTS, identity=artifact.identity)
    return artifact


def store(folder: epath.PathLike, records: Iterator[dict[str, Any]]) -> None:
    """Writes records as an artefact of passages."""
    known = IdSet()

    def once() -> Iterator[dict[str, Any]]:
        for record in records:
            if not known.add(str(record["_id"])):
                raise repeated_id(record["_id"], "is given twice")
            yield record

    with artifacts.create(folder, kind=PASSAGES, replace=True) as writer:
        write_records(writer, once())
        if not writer.count:
            raise UserError("there are no texts in the input; check the path and its format")
    # The lock has the process's number, which would make the folder differ from run to run.
    (epath.Path(folder) / artifacts.LOCK).unlink(missing_ok=True)


def read_passages(
    path: str, format: str = "auto", cut_by: Tokenizer | None = None
) -> Iterator[dict[str, Any]]:
    """Records {"_id", "title", "text"} (or {"_id", "tokens"}) of a corpus. With a tokenizer its
    documents are cut, and records say the rest of them too, such as a language and a year.
    """
    format, path = source(format, path)
    if format == TOKENS:
        yield from read_tokens(path)
        return
    bad, cutter = BadLines(), Cutter(Cutting(), cut_by)
    for document in documents.read(format, path, bad=bad):
        if cut_by is not None:
            yield from cutter.records(document)
            continue
        if not document.passages:
            of_folder = "path" in document.meta
            known = {k: document.meta[k] for k in _KEPT if of_folder and k in document.meta}
            yield {"_id": document.id, "title": document.title, "text": document.text, **known}
        for passage in document.passages:
            yield {"_id": passage.id, "title": passage.title, "text": passage.text}
    if summary := bad.summary():
        progress.say(f"{path}: {summary}")
    bad.say_choices(path)


def read_tokens(path: str) -> Iterator[dict[str, Any]]:
    """JSON lines of token ids: {"_id", "tokens": […]}, or Tevatron's {"text_id", "text": […]}."""
    bad = BadLines()

    def parse(line: Line) -> dict[str, Any]:
        record = json_object(line.text)
        ids = record.get("tokens", record.get("text"))
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise BadRecord("'tokens' is not a list of token ids")
        return {"_id": string(record, "_id", "text_id", "id", what="id"), "tokens": ids}

    for file in expand(path, (".jsonl", ".json")):
        yield from parsed(file, bad, parse)


def source(format: str, path: str) -> tuple[str, str]:
    """The format, recognised where it is "auto", and the path that its reader takes."""
    format, path = documents.source(format, path)
    return (format_of(path) if format == "auto" else format), path


def format_of(path: str) -> str:
    """BEIR's layout by its names, files of lines by the first one; the rest is read as folders."""
    folder = os.path.isdir(path) and not is_file(path)
    if folder and find_file(path, "corpus.jsonl", "documents.jsonl"):
        return BEIR
    names = [n for n in os.listdir(path) if not n.startswith(".")] if folder else [path]
    pages = {suffix for page in PAGES.formats.values() for suffix in page.suffixes if suffix}
    page = folder or os.path.splitext(path)[1].lower() in pages and is_file(path)
    ends = _LINES if folder else (*_LINES, ".json")  # a folder's JSON files are documents
    lines = names and all(plain_name(name).lower().endswith(ends) for name in names)
    if lines or not page:
        start = sample(expand(path, _LINES)[0], path)
        known = start.record or {}
        if "tokens" in known or isinstance(known.get("text"), list):
            return TOKENS
        # A record that fills several lines is no JSON line.
        if (start.record or not start.named(".json")) and (name := DOCUMENTS.detect(start)):
            return name
    if page:
        return FOLDER
    raise UserError(f"{path} is in no format that is recognised; name one with --format")


def find(location: Mapping[str, Any], base: epath.PathLike) -> Artifact | None:
    """The texts at a location that an artefact stored; None if they were moved or changed."""
    for place in places(location, base):
        if os.path.exists(os.path.join(place, artifacts.COMMIT)):
            artifact = artifacts.load(place)
            if artifact.identity == location["identity"]:
                return artifact
    return None


def places(known: Mapping[str, Any], base: epath.PathLike) -> tuple[str, str]:
    """Where a folder may be that an artefact in `base` refers to: both may be moved together."""
    path = str(known["path"])
    return os.path.normpath(os.path.join(os.fspath(base), known.get("relative", path))), path


def location(artifact: Artifact, base: epath.PathLike) -> dict[str, Any]:
    path = os.path.abspath(os.fspath(artifact.path))
    return seen_from({"path": path, "identity": artifact.identity}, base, base)


def seen_from(
    known: Mapping[str, Any], base: epath.PathLike, new: epath.PathLike
) -> dict[str, Any]:
    """A location that an artefact in `base` stored as one in the folder `new` stores it."""
    together, path = places(known, base)
    path = os.path.abspath(together) if os.path.isdir(together) else path
    if not os.path.isabs(path):
        return {**known, "path": path}  # a name at the Hub, or in a store
    return {**known, "path": path, "relative": os.path.relpath(path, os.path.abspath(new))}


def write_ids(out: Writer, ids: Iterable[str]) -> int:
    ends = [0]
    with out.open(IDS, "wb") as file:
        for name in ids:
            line = name.encode() + b"\n"
            if line.count(b"\n") > 1 or len(line) == 1:
                raise UserError(f"the id {name!r} is empty or holds a line's end; rename it")
            file.write(line)
            ends.append(ends[-1] + len(line))
    out.write_array(IDS_OFFSETS, np.array(ends, np.uint64))
    return len(ends) - 1


class Ids(Sequence[str]):
    """Row -> id, of a finished artefact."""

    def __init__(self, artifact: Artifact):
        path = os.fspath(artifact.file(IDS))
        offsets, size = artifact.file(IDS_OFFSETS), os.path.getsize(path)
        self._offsets = arrays.read_offsets(offsets, size, artifact.count)
        self._text: bytes | mmap.mmap = b""
        if len(self):
            with open(path, "rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        begin, end = self._offsets[row : row + 2].tolist()
        try:
            return self._text[begin : end - 1].decode()
        except UnicodeDecodeError as error:
            raise UserError(f"the id of row {row} is not UTF-8; make the artefact again") from error

    def many(self, rows: np.ndarray) -> list[str]:
        """The ids of rows; rows below 0 (fewer hits than k) are left out."""
        return [self[row] for row in rows.tolist() if row >= 0]


@dataclasses.dataclass(frozen=True)
class Hit:
    id: str
    score: float
    title: str = ""
    text: str = ""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """Of a hybrid index: the score by each of its two parts."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """The rest of the passage's record, such as path, url, heading and columns."""

    @property
    def place(self) -> str:
        """Where it can be read: its file with the page or row, its address; "" where unknown."""
        known = self.metadata
        path = str(known.get("path") or "")
        parts = [f", {part} {known[part]}" for part in ("page", "row") if path and part in known]
        return "  ".join(filter(None, (path + "".join(parts), str(known.get("url") or ""))))


class Hits(list[Hit]):
    """The hits of a question; a notebook shows them as a table."""

    likely: float | None = None
    """How likely it is that the index has an answer at all, where that is known."""

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><td>{hit.score:.4f}</td><td style='text-align:left'><b>"
            f"{escape(hit.title or hit.id)}</b> <small>{escape(hit.place)}</small><br>"
            f"{escape(textwrap.shorten(hit.text, _SHOWN, placeholder='…'))}</td></tr>"
            for hit in self
        )
        return f"<table>{''.join(rows)}</table>"


class Searchable(abc.ABC):
    """An artefact that can be searched: an index of vectors, or a BM25 index."""

    def __init__(self, artifact: Artifact):
        self.artifact = artifact
        self.ids = Ids(artifact)

    def __len__(self) -> int:
        return len(self.ids)

    @abc.abstractmethod
    def find(self, questions: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """(scores float32, rows int64) [questions, k], best first; row -1 where there is none."""

    def run(self, queries: Mapping[str, str], k: int) -> Run:
        scores, rows = self.find(list(queries.values()), min(k, len(self)))
        return {
            name: ranking(self.ids, best, gains)
            for name, best, gains in zip(queries, rows, scores, strict=True)
        }

    def ask(self, questions: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The top k passages for each question, with their texts where these are available."""
        scores, rows = self.find(questions, min(k, len(self)))
        return [self._hits(*best) for best in zip(rows, scores, strict=True)]

    @functools.cached_property
    def texts(self) -> Texts:
        return Texts(self.artifact.info["texts"], self.artifact.path)

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        hits = []
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            if row >= 0:
                record = dict(self.texts.record(row) or {})
                record.pop("_id", None)
                title, text = (record.pop(name, None) or "" for name in ("title", "text"))
                hits.append(Hit(self.ids[row], score, title, text, metadata=record))
        return hits


class Texts:
    """The passage of each row, from the artefacts of passages that an index refers to."""

    def __init__(self, locations: Sequence[Mapping[str, Any]], base: os.PathLike[str]):
        self._locations, self._base = locations, base
        self._records: dict[int, Records | None] = {}
        self.missing: list[str] = []  # folders that no longer exist

    def record(self, row: int) -> dict[str, Any] | None:
        """The passage of a row; None where its texts no longer exist."""
        for number, location in enumerate(self._locations):
            if row < location["rows"]:
                if number not in self._records:
                    artifact = find(location, self._base)
                    self._records[number] = Records(artifact) if artifact else None
                    self.missing += [] if artifact else [location["path"]]
                records = self._records[number]
                return None if records is None else records[row]
            row -= location["rows"]
        raise IndexError(row)


def by_id(passages: Sequence[Records], names: Sequence[str]) -> list[dict[str, Any]]:
    """The records of passages by their ids, each from the first artefact that has it."""
    found: dict[str, dict[str, Any]] = {}
    for records in passages:
        left = [name for name in names if name not in found]
        places = zip(left, records.positions(left), strict=True)
        found |= {name: records[place] for name, place in places if place is not None}
    if absent := [name for name in names if name not in found]:
        raise UserError(f"passage {absent[0]!r} is not among the passages; give those searched")
    return [found[name] for name in names]


def ranking(ids: Ids, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """The ranking of one query's rows, in trec_eval's order."""
    present = rows >= 0
    return ranked(ids.many(rows[present]), scores[present])
