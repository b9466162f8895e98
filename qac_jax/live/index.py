"""A living index: a folder to which passages are added, and from which they are deleted.

live = convert.create("out/live", place="out/retriever")
live.add([{"_id": "d7", "title": "Bees", "text": "They make honey.", "year": 2021}])
live.search(["Who makes honey?"], k=10, where={"year": (">=", 2020)}, hybrid=0.3)
live.delete(["d7"])
"""

import contextlib
import dataclasses
import functools
import json
import operator
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from qac_jax import artifacts
from qac_jax.artifacts import disk
from qac_jax.errors import UserError, shown
from qac_jax.formats import identities
from qac_jax.formats.records import encode
from qac_jax.inference.encoder import Encoder
from qac_jax.live import store
from qac_jax.live.filters import Where
from qac_jax.live.snapshot import Found, Snapshot
from qac_jax.live.store import KIND, LiveSettings, Record, Store, Version
from qac_jax.retrieval.corpus import Hits
from qac_jax.retrieval.index import place_of_encoder


# A text, or a record such as {"_id": "d7", "title": "Bees", "text": "Bees make honey."}.
Passage = str | Mapping[str, Any]

_LONGEST_ID = 512


def records_of(passages: Iterable[Passage]) -> list[Record]:
    """Records with "text", "title" and, where it was given, "_id" ("id" does the same)."""
    check_several(passages, "passages")
    records = [record_of(passage, number) for number, passage in enumerate(passages)]
    identities.check_once(record["_id"] for record in records if "_id" in record)
    return records


def check_several(given: Any, what: str) -> None:
    """Raises UserError for a single text or record, whose characters or keys are not meant, and for
    a data frame, which is a list of its columns' names."""
    if hasattr(given, "columns"):
        raise UserError(
            f"a table is not a list of {what}; give its rows, of pandas such as "
            "frame.rename(columns={'answer': 'text'}).to_dict('records')"
        )
    if isinstance(given, str | bytes | Mapping):
        raise UserError(
            f"{str(given)[:80]!r} is not a list of {what}; write it in brackets: [{what[:-1]}]"
        )


def record_of(passage: Passage, number: int) -> Record:
    try:
        given = {"text": passage} if isinstance(passage, str) else passage
        record: Record = {"title": "", **given}
        if "id" in record and "_id" not in record:
            record["_id"] = record.pop("id")
        if "_id" in record:
            name = record.pop("_id")
            record = {"_id": name if isinstance(name, str) else str(operator.index(name)), **record}
        name, title, text = record.get("_id", "0"), record["title"] or "", record["text"]
        read = json.loads(encode(record))
        if (text + title).strip() and 0 < len(name) <= _LONGEST_ID and "\n" not in name:
            return read
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    for field, value in passage.items() if isinstance(passage, Mapping) else ():
        try:
            encode({field: value})
        except (RecursionError, TypeError, ValueError) as error:
            raise UserError(
                f"passage {number}: the field {shown(field)} is {shown(value)}, which JSON has "
                "not; make it a text or a number, or leave the field out"
            ) from error
    raise UserError(
        f"passage {number} ({str(passage)[:80]!r}) is neither a text nor a record of JSON with a "
        f"'text' and perhaps a 'title' and an '_id' of 1 to {_LONGEST_ID} characters in one line"
    )


# A reader that meets a change looks again, at most this often.
_TRIES = 10


class LiveIndex:
    """The newest version of a folder, as far as this object has seen it (`refresh`)."""

    def __init__(self, folder: str | os.PathLike[str], *, encoder: str | Encoder = ""):
        """`encoder`: the encoder itself, or where its folder is if it was moved."""
        self.folder = Path(folder)
        self._moved = encoder if isinstance(encoder, str) else ""
        if not isinstance(encoder, str):
            self.encoder = encoder
        self.snapshot = self._newest(None)

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], settings: LiveSettings, *, encoder: str | Encoder = ""
    ) -> Self:
        """An index without passages, in a new or empty folder."""
        place = Path(folder)
        if place.exists() and any(path.name != artifacts.LOCK for path in place.iterdir()):
            raise UserError(f"{place} exists and is not empty; choose another folder")
        settings.analyzer()  # refuses an unknown language
        disk.make_folder(place)
        known = settings.encoder
        if os.path.isdir(known["path"]):  # both folders may be moved together
            relative = os.path.relpath(known["path"], os.path.abspath(place))
            settings = dataclasses.replace(settings, encoder={**known, "relative": relative})
        Store.create(place, 1, settings.dimension)
        store.commit(place, Version(), settings)
        return cls(place, encoder=encoder)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the vectors, with the same options."""
        artifact = artifacts.load(self.folder, KIND)
        place = place_of_encoder(artifact, self._moved)
        return Encoder.remembered(self.settings.encoder, place)

    @property
    def settings(self) -> LiveSettings:
        return self.snapshot.settings

    def __len__(self) -> int:
        return len(self.snapshot)

    def refresh(self) -> Snapshot:
        """Sees what others have changed; returns the newest version."""
        self.snapshot = self._newest(self.snapshot)
        return self.snapshot

    def _newest(self, known: Snapshot | None) -> Snapshot:
        for attempt in range(_TRIES):
            try:
                artifact = artifacts.load(self.folder, KIND)
                version, settings = Version.of(artifact), LiveSettings.of(artifact)
                if known is not None and known.version == version.number:
                    return known
                opened = known.store if known is not None else None
                if opened is None or opened.generation != version.generation:
                    opened = Store(self.folder, version.generation, settings.dimension)
                return Snapshot(opened, version, settings)
            except (FileNotFoundError, sqlite3.OperationalError, UserError):
                # A change may have replaced the manifest and removed files that the old one names.
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError

    def search(self, questions: Sequence[str], k: int = 10, **how: Any) -> list[Hits]:
        """The top k passages for each question, as `find` with their texts."""
        snapshot = self.snapshot
        return [snapshot.hits(each) for each in self.find(questions, k, **how)]

    def find(
        self,
        questions: Sequence[str],
        k: int,
        *,
        where: Where | None = None,
        hybrid: float | None = None,
    ) -> list[Found]:
        """The top k rows of `snapshot` for each question. `hybrid`: BM25's weight, 0 to 1."""
        if hybrid is not None and not 0 <= hybrid <= 1:
            raise UserError(f"hybrid={hybrid}; expected 0 (vectors alone) to 1 (BM25 alone)")
        snapshot, vectors = self.snapshot, None
        weight = self.settings.fusion.weight if hybrid is None else hybrid
        if weight < 1:
            vectors = self.encoder.encode(list(questions), "query")
        return snapshot.find(questions, vectors, k, where=where, weight=weight)

    def add(
        self,
        passages: Iterable[Passage],
        vectors: np.ndarray | None = None,
        *,
        replace: bool = False,
    ) -> list[str]:
        """Adds passages as one change, and returns their ids.

        Those without "_id" are called by their number among all that were ever added, or the next
        free one. Ids that the index has are refused, or with `replace` these passages are replaced.
        """
        records = records_of(passages)
        given = [record["_id"] for record in records if "_id" in record]
        if not replace:
            self._check_new(given, self.refresh())
        if not records:
            return []
        if vectors is None:
            texts = [self.encoder.passage_text(record) for record in records]
            vectors = self.encoder.encode(texts, "passage")
        wanted = (len(records), self.settings.dimension)
        if vectors.shape != wanted or not np.isfinite(vectors).all():
            raise UserError(f"vectors of the shape {vectors.shape}; expected {wanted}, all finite")
        with self._changing() as base:
            if not replace:
                self._check_new(given, base)
            old = [row for row in base.rows_of(given).tolist() if row >= 0]
            number, taken = base.state.added, set(given)
            for place, record in enumerate(records):
                if "_id" not in record:
                    while str(number) in taken or base.rows_of([str(number)])[0] >= 0:
                        number += 1
                    records[place] = {"_id": str(number), **record}
                number += 1
            with base.store.changing(base.state):
                base.store.delete(old, base.version + 1)
                how = self.settings.analyzer(), base.state.sums
                rows, sums = base.store.append(records, vectors, *how)
            count = len(base) + len(records) - len(old)
            version = base.state.after(rows=rows, count=count, added=number, sums=sums)
            self._commit(base.store, version)
        return [record["_id"] for record in records]

    def _check_new(self, names: Sequence[str], base: Snapshot) -> None:
        for name, row in zip(names, base.rows_of(names), strict=True):
            if row >= 0:
                raise identities.repeated_id(name, f"is in {self.folder} already")

    def rows_of(self, names: Sequence[str]) -> list[int]:
        """UserError for an id that the index does not have."""
        rows = self.snapshot.rows_of(names).tolist()
        if -1 in rows:
            raise UserError(f"passage {names[rows.index(-1)]!r} is not in {self.folder}")
        return rows

    def delete(self, ids: Iterable[str], *, missing_ok: bool = False) -> list[str]:
        """Deletes passages as one change; returns the ids that were there."""
        check_several(ids, "ids")
        names = list(dict.fromkeys(map(str, ids)))
        with self._changing() as base:
            rows = base.rows_of(names).tolist() if missing_ok else self.rows_of(names)
            found = {name: row for name, row in zip(names, rows, strict=True) if row >= 0}
            if found:
                gone = list(found.values())
                with base.store.changing(base.state):
                    base.store.delete(gone, base.version + 1)
                self._commit(base.store, base.state.after(count=len(base) - len(gone)))
        return list(found)

    def compact(self) -> None:
        """Leaves out what was deleted, in a new generation of files."""
        with self._changing() as base:
            if base.rows == len(base):
                return
            made = Store.create(self.folder, base.state.generation + 1, self.settings.dimension)
            written = Version()
            for records, vectors in base.passages():
                with made.changing(written):
                    how = self.settings.analyzer(), written.sums
                    rows, sums = made.append(records, vectors, *how)
                written = dataclasses.replace(written, rows=rows, sums=sums)
            changed = {"generation": made.generation, "rows": written.rows, "sums": written.sums}
            self._commit(made, base.state.after(**changed, content=""))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Snapshot]:
        """One change at a time, of the newest version."""
        with artifacts.locked(self.folder):
            base = self.refresh()
            store.sweep(self.folder, base.state)
            yield base

    def _commit(self, opened: Store, version: Version) -> None:
        made = Snapshot(opened, version, self.settings)
        made.state = version = dataclasses.replace(version, gone=made.gone())
        store.commit(self.folder, version, self.settings)
        self.snapshot = made
        store.sweep(self.folder, version)
