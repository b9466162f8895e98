"""What a slice leaves: an archive in files of limited size, from which the next slice goes on.

It holds the metrics of finished cells, the models and negatives that unfinished cells still need,
the checkpoint of a training that was stopped, and which device did what. All else is made again
from these, in less time than it would take to carry it. `slice.json` is written last and names the
files with their hashes.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.evidence.layout import Bundle, PackedCell, extract, finished


SLICE, LEDGER = "slice.json", "ledger.json"
LARGEST = 16 << 20  # bytes of a file
# What is carried of a cell that is not finished.
_CARRIED = ("parameters", "negatives")
_TRAINING = "training"  # the scratch folder of a stage that trains


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the stages in an unpacked bundle are."""

    bundle: Bundle
    root: Path

    def is_done(self, cell: PackedCell) -> bool:
        return all(finished(self.root, place) for place in cell.metrics)

    def done(self) -> list[PackedCell]:
        return [cell for cell in self.bundle.cells if self.is_done(cell)]

    def kept(self) -> Iterator[str]:
        """The folders and files that are carried."""
        if (self.root / LEDGER).is_file():
            yield LEDGER
        needed: set[str] = set()
        for cell in self.bundle.cells:
            for place in cell.metrics:
                self._walk(place, needed)
        yield from sorted(needed)

    def _walk(self, place: str, needed: set[str]) -> None:
        """Adds what must be carried so that a stage need not run again, or can go on."""
        if place in needed or place not in self.bundle.stages:
            return
        artifact = finished(self.root, place)
        if artifact is not None and artifact.kind in (*_CARRIED, "metrics"):
            needed.add(place)
            return
        if artifact is None and (self.root / place / artifacts.SCRATCH / _TRAINING).is_dir():
            needed.add(place)
        for other in self.bundle.inputs(place):
            self._walk(other, needed)


def save(state: Progress, out: Path, facts: dict[str, Any], largest: int = LARGEST) -> int:
    """Writes the archive in place of the one before; returns its size."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    new = _Pieces(out, largest)
    with (
        gzip.GzipFile(fileobj=new, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as tar,
    ):
        for name in state.kept():
            tar.add(state.root / name, name)
    new.close()
    for name in _names(out):
        (out / name).unlink()
    (out / SLICE).unlink(missing_ok=True)
    for name in new.pieces:
        (out / f"{name}.part").replace(out / name)
    seconds = {"seconds_of_saving": round(time.monotonic() - began, 3)}
    record = {**facts, **seconds, "bundle": state.bundle.identity, "files": new.pieces}
    part = out / f"{SLICE}.part"
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(out / SLICE)
    return new.size


def read(folder: Path, bundle: Bundle) -> dict[str, Any] | None:
    """What is known of the slice in a folder; None where there is none."""
    if not (folder / SLICE).is_file():
        return None
    try:
        record = json.loads((folder / SLICE).read_text(encoding="utf-8"))
        identity, _ = record["bundle"], record["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / SLICE} cannot be read ({error!r}); copy the slice again"
        ) from error
    if identity != bundle.identity:
        raise UserError(
            f"{folder} holds a slice of another bundle; give the bundle that it belongs to"
        )
    return record


def unpack(folder: Path, bundle: Bundle, root: Path) -> None:
    """Puts what a slice left into an unpacked bundle."""
    record = read(folder, bundle)
    if record is None:
        raise UserError(f"{folder} holds no {SLICE}; give a folder of `launch/evidence.sh run`")
    for name, entry in record["files"].items():
        path = folder / name
        if not path.is_file() or _hash(path) != entry["sha256"]:
            raise UserError(f"{path} is missing or damaged; copy the slice again")
    with (
        _Joined([folder / name for name in record["files"]]) as joined,
        tarfile.open(fileobj=joined, mode="r|gz") as tar,
    ):
        extract(tar, root)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("slice-[0-9][0-9][0-9].tgz"))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Pieces(io.RawIOBase):
    """One stream into files of limited size, `slice-NNN.tgz.part`."""

    def __init__(self, folder: Path, largest: int):
        self._folder, self._largest = folder, largest
        self._file: Any = None
        self.pieces: dict[str, dict[str, Any]] = {}
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while view:
            if self._file is None or self._file.tell() >= self._largest:
                self._next()
            room = self._largest - self._file.tell()
            self._file.write(view[:room])
            self.size += min(room, len(view))
            view = view[room:]
        return memoryview(data).nbytes

    def _next(self) -> None:
        self._end()
        self._name = f"slice-{len(self.pieces):03d}.tgz"
        self.pieces[self._name] = {}
        self._file = (self._folder / f"{self._name}.part").open("wb")

    def _end(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        path = self._folder / f"{self._name}.part"
        self.pieces[self._name] = {"size": path.stat().st_size, "sha256": _hash(path)}

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()


class _Joined(io.RawIOBase):
    """Files as one stream."""

    def __init__(self, paths: list[Path]):
        self._left = list(paths)
        self._file: Any = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while self._file is not None or self._left:
            if self._file is None:
                self._file = self._left.pop(0).open("rb")
            if data := self._file.read(size):
                return data
            self._end()
        return b""

    def close(self) -> None:
        self._end()
        super().close()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
