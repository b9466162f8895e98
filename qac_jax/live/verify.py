"""`qac inspect --verify` of a living index: is what it holds what was added?

Texts and vectors are hashed again, batch by batch, and so is which rows are deleted. Words and
metadata are compared with those that the texts give, and SQLite looks at its own pages.
"""

import json
from collections.abc import Iterator

import numpy as np

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.live import filters, store
from qac_jax.live.index import LiveIndex
from qac_jax.live.snapshot import TOGETHER, Snapshot
from qac_jax.retrieval.corpus import passage_text


def verify(artifact: Artifact) -> None:
    """Raises UserError where anything was changed after it was written."""
    snapshot = LiveIndex(artifact.path).snapshot
    for look in (_pages, _deletions, _batches, _derived):
        try:
            what = look(snapshot)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            what = f"a passage cannot be read ({type(error).__name__}: {error})"
        if what is not None:
            raise UserError(
                f"{artifact.path} is damaged: {what}; make the index again, or copy what can be "
                f"read: qac index NEW_FOLDER --add {artifact.path}"
            )


def _pages(snapshot: Snapshot) -> str | None:
    (found,) = snapshot.store.read("PRAGMA integrity_check(1)")[0]
    return None if found == "ok" else f"SQLite says {found!r}"


def _deletions(snapshot: Snapshot) -> str | None:
    state = snapshot.state
    count = int(np.count_nonzero(snapshot.alive))
    if count != state.count or snapshot.gone() != (state.gone or snapshot.gone()):
        return f"other passages are deleted than were: {count:,} of {state.count:,} are left"
    return None


def _batches(snapshot: Snapshot) -> str | None:
    rows, sums, covered = snapshot.rows, "", np.zeros(snapshot.rows, bool)
    has_any = snapshot.store.read("SELECT 1 FROM sqlite_master WHERE name = 'batches'")
    query = "SELECT start, stop, sha256 FROM batches WHERE start < ? ORDER BY start"
    for start, stop, expected in snapshot.store.read(query, rows) if has_any else ():
        lines = (line for line, _ in _passages(snapshot, start, stop))
        if not (type(stop) is int and 0 <= start < stop <= rows):
            return f"there is no batch of passages {start} to {stop}"
        sums = store.batch_sum(sums, lines, snapshot.vectors(np.arange(start, stop)))
        if sums != expected:
            return f"passages {start:,} to {stop - 1:,} or their vectors are not those added"
        covered[start:stop] = True
    if sums != snapshot.state.sums:
        return "passages are missing"
    if not covered[snapshot.alive].all():
        return "an earlier version has written it without hashes"
    return None


def _derived(snapshot: Snapshot) -> str | None:
    """A bucket of rows at a time."""
    for bucket, start in enumerate(range(0, snapshot.rows, store._BUCKET)):
        stop = min(start + store._BUCKET, snapshot.rows)
        found = list(_passages(snapshot, start, stop))
        records = [json.loads(line) for line, _ in found]
        if [record["_id"] for record in records] != [name for _, name in found]:
            return f"the ids of passages {start:,} to {stop - 1:,} are not those of their texts"
        words = store.counted(map(passage_text, records), snapshot.analyzer, start)
        query = "SELECT word, counts FROM words WHERE bucket = ?"
        stored = {word: _before(stop, pairs) for word, pairs in snapshot.store.read(query, bucket)}
        if {word: pairs for word, pairs in stored.items() if pairs} != {w: p for w, _, p in words}:
            return f"the words of passages {start:,} to {stop - 1:,} are not those of their texts"
        values = {
            (field, *filters.stored(value), row)
            for row, record in enumerate(records, start)
            for field, value in filters.values(record)
        }
        query = "SELECT field, kind, value, row FROM fields WHERE row >= ? AND row < ?"
        if values != set(snapshot.store.read(query, start, stop)):
            return f"the metadata of passages {start:,} to {stop - 1:,} are not their own"
    return None


def _before(stop: int, pairs: bytes) -> bytes:
    """The pairs (row, count) of rows before `stop`: another process may have added later ones."""
    both = np.frombuffer(pairs[: len(pairs) // 8 * 8], np.int32).reshape(-1, 2)
    return both[both[:, 0] < stop].tobytes() + pairs[len(pairs) // 8 * 8 :]


def _passages(snapshot: Snapshot, start: int, stop: int) -> Iterator[tuple[str, str]]:
    """(JSON, id) of rows."""
    query = "SELECT record, id FROM passages WHERE row >= ? AND row < ? ORDER BY row"
    for first in range(start, stop, TOGETHER):
        yield from snapshot.store.read(query, first, min(first + TOGETHER, stop))
