"""A living index beside artefacts of other kinds: made of them, and searched as they are.

Vectors are taken over where the artefact has them; else the texts are encoded.
"""

import dataclasses
import itertools
import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, shown
from qac_jax.formats import identities
from qac_jax.formats.records import Records
from qac_jax.formats.runs import Run, ranked
from qac_jax.hub import names
from qac_jax.inference import encoder as encoders
from qac_jax.inference import reranker
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.settings import AS_IN_FOLDER, BY_DEVICE
from qac_jax.live.index import LiveIndex, records_of
from qac_jax.live.snapshot import TOGETHER
from qac_jax.live.store import KIND, SCHEMA, LiveSettings, Record
from qac_jax.retrieval import corpus, hybrid, index, search, vectors
from qac_jax.retrieval.bm25 import PRESETS, QUESTIONS, Scoring
from qac_jax.retrieval.corpus import Hits, Searchable, Texts, passage_text
from qac_jax.retrieval.fusion import Fusion
from qac_jax.retrieval.hybrid import Hybrid
from qac_jax.retrieval.index import Index
from qac_jax.retrieval.vectors import Vectors


KINDS = (index.KIND, hybrid.KIND, vectors.KIND)
_SCANN_VECTORS = "dataset.npy"


def create(
    folder: str | os.PathLike[str],
    source: Artifact | None = None,
    *,
    place: str | os.PathLike[str] = "",
    encoder: Encoder | None = None,
    weight: float | None = None,
) -> LiveIndex:
    """A new living index without passages, with the encoder of a folder or its name (`place`), or
    with that of a `source`, an index or vectors, and its weight and words."""
    if source is None:
        place = names.folder(place)
        encoder = encoder or Encoder.load(place)
        known = encoders.memory(place, AS_IN_FOLDER, BY_DEVICE, {})
        settings = LiveSettings(known, encoder.width, encoder.module.config.normalize)
    else:
        place = index.place_of_encoder(source, os.fspath(place))
        encoder = encoder or Encoder.remembered(source.info["encoder"], place)
        settings = _settings_of(source, encoder, place)
    if weight is not None:
        fusion = dataclasses.replace(settings.fusion, weight=weight)
        settings = dataclasses.replace(settings, fusion=fusion)
    return LiveIndex.create(folder, settings, encoder=encoder)


def _settings_of(artifact: Artifact, encoder: Encoder, place: str) -> LiveSettings:
    known = {**artifact.info["encoder"], "path": os.path.abspath(place)}
    known.pop("relative", None)
    if artifact.kind == KIND:
        return dataclasses.replace(LiveSettings.of(artifact), encoder=known)
    if artifact.kind == vectors.KIND:
        known = {**known, "identity": index.encoder_of(artifact)["identity"]}
    # The answers of a dense index stay those of its vectors, unless a weight is given.
    fusion, scoring, words = Fusion(weight=0.0), PRESETS[QUESTIONS], {}
    if artifact.kind == hybrid.KIND:
        opened = Hybrid(artifact)
        fusion, lexical = opened.settings, opened.parts.bm25.description
        scoring = Scoring(lexical["k1"], lexical["b"], lexical["variant"])
        words = {name: lexical[name] for name in ("stemmer", "stop_words")}
    cosine = encoder.module.config.normalize
    return LiveSettings(known, encoder.width, cosine, fusion, scoring, **words)


def living(
    source: Artifact, folder: Path, *, encoder: Encoder | None = None, moved: str = ""
) -> LiveIndex:
    """A new living index with all passages of an index or of vectors."""
    made = create(folder, source, place=moved, encoder=encoder)
    add(made, source)
    return made


def add(live: LiveIndex, source: Artifact, *, replace: bool = False) -> int:
    """Adds an artefact's passages in changes of 16,384; returns how many."""
    count = 0
    with progress.Bar("index", total=source.count, unit="passages") as bar:
        if source.kind in (*KINDS, KIND):
            _check_encoder(live, source)
        for records, known in rows(source):
            live.add(records, known, replace=replace)
            count += len(records)
            bar.advance(len(records))
    return count


@dataclasses.dataclass
class Changes:
    """Documents that are new, changed or unchanged, by their names; numbers of passages."""

    documents: dict[str, str] = dataclasses.field(default_factory=dict)
    added: int = 0
    deleted: int = 0


def add_documents(
    live: LiveIndex, path: str, done: Changes, format: str = "auto", replace: bool = False
) -> bool:
    """Cuts documents as `qac prepare` does, adds passages that are new or differ, and deletes those
    that their documents no longer have. Files of a folder are known by their paths and replaced,
    documents of other formats by their ids, and replaced if asked. Returns whether it is a folder.
    """
    format, path = corpus.source(format, path)
    field = "path" if format == corpus.FOLDER else "doc"
    replace = replace or field == "path"
    before, fresh, stale = {*done.documents}, list[Record](), list[str]()

    def write() -> None:
        with progress.Bar("index", total=len(fresh), unit="passages") as bar:
            texts = [live.encoder.passage_text(record) for record in fresh]
            vectors = live.encoder.encode(texts, "passage", advance=bar.advance) if texts else None
        live.add(fresh, vectors, replace=replace)
        live.delete(stale, missing_ok=True)
        done.added, done.deleted = done.added + len(fresh), done.deleted + len(stale)
        del fresh[:], stale[:]

    read = corpus.read_passages(path, format, live.encoder.tokenizer)
    snapshot = live.refresh()
    for name, group in itertools.groupby(read, operator.itemgetter(field)):
        if name in before and field == "path":
            raise UserError(f"{name} is in two of the folders; add the one that holds both")
        records = records_of(record for record in group if passage_text(record).strip())
        stored = snapshot.having("id, record", field, name)
        known = {id: json.loads(record) for id, record in stored}
        differ = [record for record in records if known.get(record["_id"]) != record]
        gone = known.keys() - {record["_id"] for record in records}
        how = "new" if not known else "changed" if differ or gone else "unchanged"
        if how == "changed" and not replace:
            raise identities.repeated_id(name, f"is in {live.folder} already, with another text")
        done.documents[name] = how
        fresh += differ
        stale += sorted(gone)
        if len(fresh) >= TOGETHER:
            write()
    if not done.documents:
        raise UserError(f"there are no texts in {path}; check the path and its format")
    if fresh or stale:
        write()
    return field == "path" and os.path.isdir(path)


def rows(source: Artifact) -> Iterator[tuple[list[Record], np.ndarray | None]]:
    """Records of passages and their vectors, where these are known, in blocks."""
    known: Vectors | None = None
    if source.kind == corpus.PASSAGES:
        records = iter(Records(source))
    elif source.kind == KIND:
        current = source.schema == SCHEMA
        yield from LiveIndex(source.path).snapshot.passages() if current else _earlier(source)
        return
    elif source.kind in KINDS:
        records, known = _records_of(source), _vectors_of(source)
    else:
        raise UserError(f"{source.path} is of kind {source.kind!r}; give passages or an index")
    start = 0
    while group := list(itertools.islice(records, TOGETHER)):
        stop = start + len(group)
        yield group, None if known is None else known.read(start, stop).astype(np.float32)
        start = stop


def _earlier(source: Artifact) -> Iterator[tuple[list[Record], np.ndarray]]:
    """Of a living index of the earlier format, whose segments were artefacts."""
    for segment in source.info["manifest"]["segments"]:
        name, deleted = segment["name"], segment["tombstones"]
        artifacts.refuse_link(place := source.path / artifacts.inside(name))
        part = artifacts.load(place)
        alive = np.ones(part.count, bool)
        if deleted:
            artifacts.refuse_link(marks := source.path / artifacts.inside(deleted))
            alive[np.load(marks)] = False
        records, known = Records(part), Vectors.of(part)
        for start in range(0, part.count, TOGETHER):
            rows = start + np.flatnonzero(alive[start : start + TOGETHER])
            if len(rows):
                yield [records[row] for row in rows.tolist()], known.take(rows)


def _records_of(source: Artifact) -> Iterator[Record]:
    known = source.info["texts"]
    locations = [{**known, "rows": source.count}] if isinstance(known, dict) else known
    passages = Texts(locations, source.path)
    for row in range(source.count):
        record = passages.record(row)
        if record is None:
            raise UserError(f"the texts of {source.path} are not at {passages.missing[0]} any more")
        yield record


def _vectors_of(source: Artifact) -> Vectors | None:
    """None of FAISS's indexes, and where ScaNN keeps them in another precision only."""
    if source.kind == vectors.KIND:
        return Vectors.of(source)
    dense = Index.load(source.path / hybrid.DENSE) if source.kind == hybrid.KIND else Index(source)
    if dense.description["method"] == index.EXACT:
        return dense.vectors
    folders = [Path(os.fspath(dense.artifact.path)) / name for name in dense.description["parts"]]
    files = [folder / _SCANN_VECTORS for folder in folders]
    return Vectors([str(file) for file in files]) if all(map(Path.exists, files)) else None


def _check_encoder(live: LiveIndex, source: Artifact) -> None:
    of_vectors = source.kind == vectors.KIND
    theirs = index.encoder_of(source) if of_vectors else source.info["encoder"]
    known = {encoder.get("identity") for encoder in (live.settings.encoder, theirs)}
    if len(known - {None, ""}) > 1 or source.info.get("side") == "query":
        raise UserError(
            f"{source.path} was made with another encoder than {live.folder}, or of queries; make "
            f"an index of its own of it: qac index NEW_FOLDER --add {source.path}"
        )


@dataclasses.dataclass(frozen=True)
class LiveSearch:
    """One version of a living index, searched by one filter and one weight."""

    live: LiveIndex
    where: Mapping[str, Any] | None = None
    hybrid: float | None = None

    def run(self, queries: Mapping[str, str], k: int) -> Run:
        """The run of queries (id -> text), as in a TREC file."""
        found = self.live.find(list(queries.values()), k, where=self.where, hybrid=self.hybrid)
        ids = self.live.snapshot.ids
        return {
            name: ranked(ids(each.rows.tolist()), each.scores)
            for name, each in zip(queries, found, strict=True)
        }

    def ask(self, questions: Sequence[str], k: int = 10) -> list[Hits]:
        """The top k passages for each question in the newest version, with their texts."""
        self.live.refresh()
        return self.live.search(questions, k, where=self.where, hybrid=self.hybrid)


def is_living(place: str | os.PathLike[str]) -> bool:
    record = artifacts.peek(place)
    return record is not None and record["kind"] == KIND


def texts_of(index: Artifact) -> reranker.Texts:
    """Ids -> texts with titles, of the passages of an index of any kind."""
    if index.kind != KIND:
        return search.texts_of(index)
    live = LiveIndex(index.path)
    return lambda ids: [passage_text(r) for r in live.snapshot.records(live.rows_of(ids))]


def opened_index(
    place: str | os.PathLike[str], encoder: str = "", where: str = "", hybrid: float | None = None
) -> Searchable | LiveSearch:
    """An index of any kind; `where` (JSON) and `hybrid` are for living ones."""
    if is_living(place):
        try:
            wanted = json.loads(where) if where else None
        except (RecursionError, ValueError) as error:
            raise UserError(
                f'--where {shown(where)} is not JSON ({error}); expected {{"lang": "en"}}'
            ) from error
        return LiveSearch(LiveIndex(place, encoder=encoder), wanted, hybrid)
    if where or hybrid is not None:
        raise UserError(
            f"{place} has no metadata to filter by, and its weight is fixed; make a living index "
            f"of it: qac index NEW_FOLDER --add {place} (of BM25: its passages, with --encoder)"
        )
    return search.open_index(place, encoder)
