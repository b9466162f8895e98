"""Bad input: reported in one sentence with file and line, or tolerated, counted and listed.

Readers raise `BadRecord` for what is wrong with one record and hand it to `BadLines`, which
allows a number of them (`--skip_bad N`) and keeps the list. Files of a folder that hold no
documents are no mistakes: they are listed with the reason. Nothing is dropped in silence.
"""

import functools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from qac_jax import progress
from qac_jax.artifacts import Writer
from qac_jax.errors import DataError


# Choices that are said on screen; all are in the list.
_SHOWN = 10


class BadRecord(Exception):
    """A fault in a record; its place is known to whoever catches this."""


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
    file: str
    line: int | None
    message: str


class Skipped(NamedTuple):
    """A file, folder or row of a folder that is not read, and why."""

    path: str
    reason: str
    detail: str = ""
    line: int | None = None


class Note(NamedTuple):
    """A choice that a reader had to make by itself: an encoding, the columns of a table."""

    path: str
    text: str


class BadLines:
    """Counts and lists bad records; raises a DataError for the first one too many.

    allowed: how many are skipped (None: none, and no flag allows some). left_out and kept: what the
    rule of a format leaves out, or keeps though it looks wrong.
    """

    def __init__(self, allowed: int | None = None):
        self.allowed = allowed
        self.items: list[BadLine] = []
        self.skipped: list[Skipped] = []
        self.notes: list[Note] = []
        self.left_out: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.items)

    def add(self, message: object, place: Place) -> None:
        self._add(BadLine(*place.resolve(), str(message)))

    def leave_out(self, what: str, count: int = 1) -> None:
        self.left_out[what] += count

    def facts(self) -> dict[str, Any]:
        """All of it as JSON, for `merge` in another process."""
        return {
            "bad": self.items,
            "skipped": self.skipped,
            "notes": self.notes,
            "left_out": dict(self.left_out),
            "kept": dict(self.kept),
        }

    def merge(self, facts: Mapping[str, Any]) -> None:
        """Takes over the `facts` of another process."""
        for item in facts["bad"]:
            self._add(BadLine(*item))
        self.skipped += [Skipped(*item) for item in facts["skipped"]]
        self.notes += [Note(*item) for item in facts["notes"]]
        self.left_out.update(facts["left_out"])
        self.kept.update(facts["kept"])

    def _add(self, item: BadLine) -> None:
        if len(self.items) < (self.allowed or 0):
            self.items.append(item)
            return
        hint = "mend the file"
        if self.allowed is not None:
            hint += f", or list more than {self.allowed} bad records by --skip_bad N"
        raise DataError(f"{item.message}; {hint}", file=item.file, line=item.line)

    def summary(self) -> str:
        """One line for the user; empty when all was read."""
        parts = [f"left out {count} {what}" for what, count in sorted(self.left_out.items())]
        parts += [f"kept {count} {what}" for what, count in sorted(self.kept.items())]
        if self.items:
            file, line, message = self.items[0]
            place = file if line is None else f"{file}:{line}"
            parts.append(f"skipped {len(self.items)} bad records, the first at {place}: {message}")
        return "; ".join(parts)

    def counts(self) -> dict[str, dict[str, int]]:
        """The counts that an artefact records beside the lists."""
        not_read = Counter(item.reason for item in self.skipped)
        counts = {"left_out": self.left_out, "kept": self.kept, "not_read": not_read}
        return {name: dict(sorted(count.items())) for name, count in counts.items() if count}

    def report(self, out: Writer, verb: str) -> None:
        """Says what was left out, and lists it in the artefact: bad records in skipped.tsv (file,
        line, message), files and rows of a folder in skipped.jsonl, choices in notes.jsonl."""
        if summary := self.summary():
            progress.say(f"{verb}: {summary}")
        self.say_choices(verb)
        lists = {"skipped.tsv": ["\t".join(str(part or "") for part in one) for one in self.items]}
        for name, entries in (("skipped.jsonl", self.skipped), ("notes.jsonl", self.notes)):
            given = [{k: v for k, v in e._asdict().items() if v not in ("", None)} for e in entries]
            lists[name] = [json.dumps(entry, ensure_ascii=False) for entry in given]
        for name, lines in lists.items():
            if lines:
                out.part(name).write_bytes("".join(f"{line}\n" for line in lines).encode())
                out.keep(name, volatile=True)
                progress.say(f"{verb}: {name} in the artefact lists all {len(lines)}")

    def say_choices(self, verb: str) -> None:
        """Says what was chosen for files, and of each reason to skip how often and where first."""
        for note in self.notes[:_SHOWN]:
            progress.say(f"{verb}: {note.path}: {note.text}")
        if len(self.notes) > _SHOWN:
            progress.say(f"{verb}: … and {len(self.notes) - _SHOWN} more choices of this sort")
        if self.skipped:
            counts = Counter(item.reason for item in self.skipped).most_common()
            first = {item.reason: item.path for item in reversed(self.skipped)}
            said = [
                f"{count} × {reason} ({'first ' * (count > 1)}{first[reason]})"
                for reason, count in counts
            ]
            progress.say(f"{verb}: skipped {len(self.skipped)} in the folder: {', '.join(said)}")


@functools.lru_cache(maxsize=64)
def _lines_before(path: str, offset: int) -> int:
    count, left = 0, offset
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 22))):
            count += block.count(b"\n")
            left -= len(block)
    return count
