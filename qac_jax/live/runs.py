"""A living index as what writes runs: with a filter and a weight, for many queries.

opened = opened_index("out/live", where='{"lang": "en"}')
opened.run({"q1": "how do lamps work?"}, k=100)
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats.runs import Run, ranked
from qac_jax.inference.reranker import Texts
from qac_jax.live.index import LiveIndex
from qac_jax.live.manifest import KIND
from qac_jax.retrieval import bm25, search
from qac_jax.retrieval.corpus import Hit, Searchable, passage_text


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

    def ask(self, questions: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The top k passages for each question, with their texts."""
        return self.live.search(questions, k, where=self.where, hybrid=self.hybrid)

    def texts(self, ids: Sequence[str]) -> list[str]:
        """Title and text of passages, as cross-encoders read them."""
        snapshot = self.live.snapshot
        rows = snapshot.rows_of(ids).tolist()
        if -1 in rows:
            raise UserError(f"passage {ids[rows.index(-1)]!r} is not in {self.live.folder}")
        return [passage_text(snapshot.record(row)) for row in rows]


def is_living(place: str | os.PathLike[str]) -> bool:
    record = artifacts.peek(place)
    return record is not None and record["kind"] == KIND


def approximation(place: str | os.PathLike[str]) -> dict[str, Any] | None:
    """As `search.approximation`; the recall of a living index's large segments is not measured."""
    if not is_living(place):
        return search.approximation(artifacts.load(place))
    return {} if any(segment.large for segment in LiveIndex(place).snapshot.segments) else None


def texts_of(index: Artifact) -> Texts:
    """Ids -> texts with titles, of the passages of an index of any kind."""
    if index.kind == KIND:
        return LiveSearch(LiveIndex(index.path)).texts
    return search.texts_of(index)


def opened_index(
    place: str | os.PathLike[str], encoder: str = "", where: str = "", hybrid: float | None = None
) -> Searchable | LiveSearch:
    """An index of any kind; `where` (JSON) and `hybrid` are for living ones."""
    if is_living(place):
        return LiveSearch(LiveIndex(place, encoder=encoder), parsed(where), hybrid)
    if where or hybrid is not None:
        known = artifacts.peek(place)
        made_of = (
            "its passages: qac index NEW_FOLDER --add PASSAGES --encoder MODEL"
            if known is not None and known["kind"] == bm25.KIND
            else f"it: qac index NEW_FOLDER --add {place}"
        )
        raise UserError(
            f"{place} has no metadata to filter by, and its weight is fixed; make a living "
            f"index of {made_of}"
        )
    return search.open_index(place, encoder)


def parsed(where: str) -> dict[str, Any] | None:
    """A filter from the command line."""
    try:
        return json.loads(where) if where else None
    except ValueError as error:
        raise UserError(
            f'--where {where} is not JSON ({error}); expected {{"lang": "en"}}'
        ) from error
