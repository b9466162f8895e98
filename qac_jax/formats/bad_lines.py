"""Bad input: reported in one sentence with file and line, or tolerated, counted and listed.

Readers raise `BadRecord` for what is wrong with one record and hand it to `BadLines`, which
allows a number of them (`--skip_bad N`) and keeps the list. Nothing is dropped in silence.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError


class BadRecord(Exception):
    """What is wrong with a record; where it stands is known to whoever catches this."""


class Place(NamedTuple):
    """Where a record stands: a line counted from byte `start` of a file (a shard's beginning)."""

    file: str
    line: int | None = None
    start: int = 0

    def resolve(self) -> tuple[str, int | None]:
        """File and line, counted from the beginning of the file (read only when asked)."""
        if self.line is None or self.start == 0:
            return self.file, self.line
        return self.file, _lines_before(self.file, self.start) + self.line


class BadLine(NamedTuple):
    """One entry of the list of what was skipped."""

    file: str
    line: int | None
    message: str


class BadLines:
    """Counts and lists bad records; raises a DataError for the first one too many."""

    def __init__(self, allowed: int = 0):
        self.allowed = allowed
        self.items: list[BadLine] = []
        self.left_out: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.items)

    def add(self, message: object, place: Place) -> None:
        file, line = place.resolve()
        self.extend([BadLine(file, line, str(message))])

    def leave_out(self, what: str, count: int = 1) -> None:
        """Notes what a format leaves out by its own rule (redirects of a Wikipedia dump)."""
        self.left_out[what] += count

    def merge(self, other: BadLines) -> None:
        """Takes over what another process skipped and left out."""
        self.extend(other.items)
        self.left_out.update(other.left_out)

    def extend(self, items: Iterable[BadLine]) -> None:
        for item in items:
            if len(self.items) >= self.allowed:
                raise DataError(item.message + self._hint(), file=item.file, line=item.line)
            self.items.append(item)

    def _hint(self) -> str:
        if self.allowed == 0:
            return "; mend the file, or pass --skip_bad N to leave out and list up to N bad records"
        return f"; it is bad record {self.allowed + 1}, and --skip_bad allows {self.allowed}"

    def summary(self) -> str:
        """One line for the user; empty when all was read."""
        parts = [f"left out {count} {what}" for what, count in sorted(self.left_out.items())]
        if self.items:
            file, line, message = self.items[0]
            place = file if line is None else f"{file}:{line}"
            parts.append(f"skipped {len(self.items)} bad records, the first at {place}: {message}")
        return "; ".join(parts)

    def report(self, out: Writer, verb: str) -> None:
        """Says what was left out, and lists the bad records in the artefact's skipped.tsv."""
        if summary := self.summary():
            progress.say(f"{verb}: {summary}")
        if self.items:
            with open(os.fspath(out.part("skipped.tsv")), "w", encoding="utf-8") as file:
                file.write(self.listing())
            out.keep("skipped.tsv", volatile=True)
            progress.say(f"{verb}: skipped.tsv lists all bad records")

    def listing(self) -> str:
        """Tab-separated: file, line, message."""
        return "".join(
            f"{file}\t{'' if line is None else line}\t{message}\n"
            for file, line, message in self.items
        )


@functools.lru_cache(maxsize=64)
def _lines_before(path: str, offset: int) -> int:
    count, left = 0, offset
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 22))):
            count += block.count(b"\n")
            left -= len(block)
    return count
