"""Ids in eight bytes: finding duplicates and places among millions of them.

An id is kept as a 64-bit BLAKE2 hash. Among 21 million ids (Wikipedia in DPR's cut) the chance
that any two different ones meet is 1 in 80,000; wherever a meeting matters, callers look at the
ids themselves.
"""

import hashlib
from array import array
from collections.abc import Iterable

import numpy as np

from qac_jax.errors import UserError


def id_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def id_hashes(ids: Iterable[str]) -> np.ndarray:
    """uint64 [n], in order."""
    return np.frombuffer(array("Q", map(id_hash, ids)), np.uint64)


def repeated_id(name: str, where: str) -> UserError:
    """The message of every index about an id that occurs twice."""
    return UserError(
        f"the id {name!r} {where}; ids of passages must differ: leave it out, or replace the "
        "passage (--replace, or replace=True in Python)"
    )


def check_once(ids: Iterable[str]) -> None:
    """Raises UserError for an id that occurs twice."""
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise repeated_id(name, "is given twice")
        seen.add(name)


class IdIndex:
    """id -> positions, 16 bytes an id."""

    def __init__(self, ids: Iterable[str]):
        hashes = id_hashes(ids)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def candidates(self, wanted: str) -> list[int]:
        """Where it is, if it is anywhere; a foreign id of the same hash is possible."""
        value = np.uint64(id_hash(wanted))
        begin = int(np.searchsorted(self._sorted, value, side="left"))
        end = int(np.searchsorted(self._sorted, value, side="right"))
        return [int(i) for i in self._order[begin:end]]


class IdSet:
    """A growing set of ids, 8 bytes each beside a short list of the newest."""

    _NEW = 1 << 18

    def __init__(self, ids: Iterable[str] = ()):
        self._sorted = np.unique(id_hashes(ids))
        self._new: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

    def __contains__(self, wanted: str) -> bool:
        return self._holds(id_hash(wanted))

    def add(self, new: str) -> bool:
        """False when it was there already."""
        value = id_hash(new)
        if self._holds(value):
            return False
        self._new.add(value)
        # A Python set costs ten times as much an id, so it is emptied into the array in time.
        if len(self._new) >= self._NEW:
            fresh = np.fromiter(self._new, np.uint64, len(self._new))
            self._sorted = np.sort(np.concatenate([self._sorted, fresh]))
            self._new = set()
        return True

    def _holds(self, value: int) -> bool:
        if value in self._new:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(value)))
        return place < len(self._sorted) and int(self._sorted[place]) == value
