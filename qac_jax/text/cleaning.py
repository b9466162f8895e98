"""One shard of passages sketched, one band of sketches compared, one shard without what goes.

The jobs that `clean` runs everywhere. A unit is a document (its passages stand one after the other
in one file) or a passage.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qac_jax.artifacts import arrays
from qac_jax.formats.records import Record, Records, write_lines
from qac_jax.text import languages, near_duplicates


DOCUMENT, PASSAGE = UNITS = ("document", "passage")

# What is to become of a unit: the number of the first record of the unit that it repeats, or this.
KEPT, FOREIGN = -1, -2

_NAMES = (languages.UNKNOWN, *languages.LANGUAGES)
_UNIT = np.dtype([
    ("sketch", np.uint32, near_duplicates.HASHES),
    ("records", np.uint32),
    ("language", np.uint8),
])  # fmt: skip
_PAIRS = 1 << 16  # that are compared at a time
_SHINGLED = 1 << 20  # characters of a unit that are sketched


@dataclass(frozen=True)
class SketchJob:
    """Records start to stop - 1 into `target`, an array of units, and `bands`, their hashes."""

    records: Records
    start: int
    stop: int
    unit: str
    band_rows: int  # 0: near-duplicates are not asked for
    with_language: bool
    target: str
    bands: str


@dataclass(frozen=True)
class BandJob:
    """One band of all sketches into `target`, pairs of units at least as similar as `threshold`."""

    band: int
    threshold: float
    sketches: tuple[str, ...]
    bands: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class KeepJob:
    """The records start to stop - 1 whose units are kept into `target`, the others' ids and why
    into `removed`; `fates` holds what becomes of each unit."""

    records: Records
    start: int
    stop: int
    unit: str
    sketches: str
    fates: str
    target: str
    removed: str


def sketch_shard(job: SketchJob) -> dict[str, Any]:
    """Returns the number of units."""
    units = []
    for records in _units(job.records.range(job.start, job.stop), job.unit):
        title = records[0].get("title", "")
        text = "\n".join([title, *(record["text"] for record in records)])[:_SHINGLED]
        entry = np.zeros((), _UNIT)
        entry["records"] = len(records)
        if job.band_rows:
            entry["sketch"] = near_duplicates.sketch(text)
        if job.with_language:
            entry["language"] = _NAMES.index(languages.language(text))
        units.append(entry)
    whole = np.array(units, _UNIT)
    if job.band_rows:
        _save(job.bands, near_duplicates.bands(whole["sketch"], job.band_rows))
    _save(job.target, whole)
    return {"units": len(whole)}


def compare_band(job: BandJob) -> dict[str, Any]:
    """Returns the number of pairs; memory grows by some 40 bytes a unit."""
    band = np.concatenate([np.load(path, mmap_mode="r")[job.band] for path in job.bands])
    candidates = near_duplicates.pairs(band)
    files = [np.load(path, mmap_mode="r") for path in job.sketches]
    starts = np.cumsum([0, *map(len, files)])
    alike = []
    for some in np.array_split(candidates, max(1, len(candidates) // _PAIRS)):
        first, second = (_sketches(files, starts, of) for of in some.T)
        alike.append(some[near_duplicates.similarity(first, second) >= job.threshold])
    _save(job.target, np.concatenate(alike))
    return {"pairs": sum(map(len, alike))}


def keep_shard(job: KeepJob) -> dict[str, Any]:
    """Returns facts of the written records, and how many units went for which reason."""
    fates = np.load(job.fates)
    units = np.load(job.sketches)
    counts: dict[str, int] = {"units": len(units), "repeated": 0, "foreign": 0}
    with open(job.removed, "w", encoding="utf-8", newline="\n") as removed:

        def kept() -> Iterator[Record]:
            groups = _units(job.records.range(job.start, job.stop), job.unit)
            for records, fate, unit in zip(groups, fates.tolist(), units, strict=True):
                if fate == KEPT:
                    yield from records
                    continue
                name = _name(records[0], job.unit)
                if fate == FOREIGN:
                    counts["foreign"] += 1
                    why = f"language {_NAMES[unit['language']] or 'not recognised'}"
                else:
                    counts["repeated"] += 1
                    why = f"repeats {_name(job.records[fate], job.unit)}"
                removed.write(f"{name}\t{why}\n")

        facts = write_lines(job.target, kept())
    return {**facts, **counts}


def fates(
    sketches: Sequence[str], alike: Sequence[str], wanted: Sequence[str], unknown: bool
) -> list[np.ndarray]:
    """What becomes of the units of every shard. `wanted`: languages that stay (none: all);
    `unknown`: whether texts of no recognised language do."""
    files = [np.load(path, mmap_mode="r") for path in sketches]
    every = np.concatenate([file["records"] for file in files]).astype(np.int64)
    first = np.cumsum(every) - every  # each unit's first record
    found = np.full(len(every), KEPT, np.int64)
    if wanted:
        names = [n in wanted or (unknown and n == languages.UNKNOWN) for n in _NAMES]
        spoken = np.concatenate([file["language"] for file in files])
        found[~np.array(names)[spoken]] = FOREIGN
    if alike:
        pairs = np.unique(np.concatenate([np.load(path) for path in alike]), axis=0)
        # What goes for its language takes nothing along.
        pairs = pairs[(found[pairs] == KEPT).all(axis=1)]
        groups = near_duplicates.copies(len(every), pairs)
        again = groups != np.arange(len(every))
        found[again] = first[groups[again]]
    ends = np.cumsum(list(map(len, files)))
    return np.split(found, ends[:-1])


def _units(records: Iterator[Record], unit: str) -> Iterator[list[Record]]:
    if unit == PASSAGE:
        yield from ([record] for record in records)
    else:
        for _, group in itertools.groupby(records, _document):
            yield list(group)


def _document(record: Mapping[str, Any]) -> str:
    return record.get("doc") or record["_id"]


def _name(record: Mapping[str, Any], unit: str) -> str:
    return record["_id"] if unit == PASSAGE else _document(record)


def _sketches(files: Sequence[np.ndarray], starts: np.ndarray, units: np.ndarray) -> np.ndarray:
    """uint32 [units, HASHES] of units anywhere in the files."""
    taken = np.empty((len(units), near_duplicates.HASHES), np.uint32)
    shards = np.searchsorted(starts, units, side="right") - 1
    for shard in np.unique(shards).tolist():
        here = shards == shard
        taken[here] = files[shard]["sketch"][units[here] - starts[shard]]
    return taken


def _save(path: str, array: np.ndarray) -> None:
    """Whole or not at all."""
    with open(f"{path}.writing", "wb") as file:
        arrays.write(file, array)
    os.replace(f"{path}.writing", path)
