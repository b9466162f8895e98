"""What may be added: texts or records, brought to one form and checked before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.formats import identities
from qac_jax.formats.records import encode
from qac_jax.live.snapshot import Snapshot


Record = dict[str, Any]
# A text, or a record such as {"_id": "d7", "title": "Bees", "text": "Bees make honey."}.
Passage = str | Mapping[str, Any]

_LONGEST_ID = 512


def records_of(passages: Iterable[Passage]) -> list[Record]:
    """Records with "text", "title" and, where it was given, "_id" ("id" does the same)."""
    check_several(passages, "passages")
    records = [_record(passage, number) for number, passage in enumerate(passages)]
    identities.check_once(record["_id"] for record in records if "_id" in record)
    return records


def check_several(given: Any, what: str) -> None:
    """Raises UserError for a single text or record, whose characters or keys are not meant."""
    if isinstance(given, str | bytes | Mapping):
        raise UserError(
            f"{str(given)[:80]!r} is not a list of {what}; write it in brackets: [{what[:-1]}]"
        )


def _record(passage: Passage, number: int) -> Record:
    if isinstance(passage, str):
        passage = {"text": passage}
    if not isinstance(passage, Mapping) or not isinstance(passage.get("text"), str):
        raise UserError(
            f"passage {number} ({str(passage)[:80]!r}) is neither a text nor a record with a "
            "'text'; give strings or mappings"
        )
    record: Record = {"title": "", **passage}
    if "id" in record and "_id" not in record:
        record["_id"] = record.pop("id")
    if "_id" in record:
        record["_id"] = _id(record["_id"], number)
        record = {"_id": record.pop("_id"), **record}
    if not isinstance(record["title"] or "", str):
        raise UserError(f"passage {number}: its title {record['title']!r} is not a text")
    if not (record["text"].strip() or record["title"]):
        raise UserError(f"passage {number} has no text; leave it out")
    try:
        return json.loads(encode(record))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"passage {number} cannot be written as JSON in UTF-8 ({type(error).__name__}); its "
            "values must be texts, finite numbers, true, false, null, lists or mappings"
        ) from error


def _id(value: Any, number: int) -> str:
    name = str(value) if isinstance(value, str | int) else ""
    if not name or "\n" in name or len(name) > _LONGEST_ID:
        raise UserError(
            f"passage {number}: {str(value)[:80]!r} is not a valid id; expected a text of 1 to "
            f"{_LONGEST_ID} characters in one line"
        )
    return name


def numbered(records: Sequence[Record], base: Snapshot) -> tuple[list[Record], int]:
    """Records that all have an id, and the first number that is still free.

    Without an id they are called by their number among all passages that were ever added.
    """
    first = base.manifest.added
    free = first + len(records)
    taken = {record["_id"] for record in records if "_id" in record}
    without = [str(first + n) for n, record in enumerate(records) if "_id" not in record]
    names = []
    for name, row in zip(without, base.rows_of(without), strict=True):
        known = row >= 0
        while known or name in taken:
            name, free = str(free), free + 1
            known = base.rows_of([name])[0] >= 0
        names.append(name)
        taken.add(name)
    upcoming = iter(names)
    return [{"_id": r["_id"] if "_id" in r else next(upcoming), **r} for r in records], free


def check_new(names: Sequence[str], base: Snapshot, place: object) -> None:
    """Raises UserError for an id that the index has."""
    for name, row in zip(names, base.rows_of(names), strict=True):
        if row >= 0:
            raise identities.repeated_id(name, f"is in {place} already")


def check_known(names: Sequence[str], base: Snapshot, place: object) -> None:
    """Raises UserError for an id that the index does not have."""
    for name, row in zip(names, base.rows_of(names), strict=True):
        if row < 0:
            raise UserError(f"passage {name!r} is not in {place}; check the id, or add the passage")


def check_vectors(vectors: np.ndarray, count: int, width: int) -> None:
    """Raises UserError for vectors that are not those of these passages."""
    if vectors.shape != (count, width):
        raise UserError(
            f"vectors of the shape {vectors.shape} for {count} passages; expected "
            f"{(count, width)}, by the encoder of the index"
        )
    if not np.isfinite(vectors).all():
        raise UserError("vectors hold infinities or NaN; encode the passages again")
