"""Kills at the k-th file operation below a folder, as an exception that nothing catches.

What has reached the file system until then is what SIGKILL would leave, since the writers buffer
nothing beyond the end of their blocks: tests/e2e/test_campaign.py kills real processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import hashing, reading


class Killed(BaseException):
    """The process would be dead: no handler may run."""


_active: list[_Watch] = []


class _Watch:
    def __init__(self, folder: Path, at: int, stop: str):
        self.root, self.at, self.stop = str(folder), at, stop
        self.seen = 0
        self.dead = False

    def operation(self, path: str) -> None:
        if self.dead:
            raise Killed("dead already")
        self.seen += 1
        if self.seen == self.at or (self.stop and self.stop in path):
            self.dead = True
            raise Killed(f"{path}, operation {self.seen}")


def _hook(event: str, arguments: Any) -> None:
    if not _active:
        return
    if event == "open":
        path, _, flags = arguments
        if not (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
    elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"):
        path, inside = arguments[0], arguments[-1]
        in_folder = event in ("os.remove", "os.rmdir", "os.mkdir")
        if in_folder and isinstance(inside, int) and inside >= 0:  # as shutil.rmtree does
            path = os.path.join(os.readlink(f"/proc/self/fd/{inside}"), os.fsdecode(path))
    else:
        return
    if isinstance(path, str | bytes | os.PathLike):
        text = os.path.abspath(os.fsdecode(path))
        for watch in list(_active):
            if text == watch.root or text.startswith(watch.root + "/"):
                watch.operation(text)


_hooked = False


def _begun(watch: _Watch) -> _Watch:
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _active.append(watch)
    return watch


def _watching(watch: _Watch, work: Callable[[], Any]) -> None:
    _begun(watch)
    try:
        work()
    finally:
        _active.remove(watch)


def operations(work: Callable[[], Any], folder: Path) -> int:
    """How many operations the work does below the folder."""
    watch = _Watch(folder, 0, "")
    _watching(watch, work)
    return watch.seen


def touched(work: Callable[[], Any], folder: Path) -> set[str]:
    """The paths below the folder that the work writes, makes or removes."""
    found = set[str]()
    watch = _Watch(folder.absolute(), 0, "")
    watch.operation = found.add  # type: ignore[assignment, method-assign]
    _watching(watch, work)
    return {os.path.relpath(path, folder) for path in found}


def at_operation(at: int, folder: Path, work: Callable[[], Any], *, stop: str = "") -> None:
    """Does the work until its `at`-th operation, or the first on a path with `stop` in it."""
    _watching(_Watch(folder, at, stop), work)


def watched(folder: Path, at: int) -> _Watch:
    """Watches this process to its end, which is its `at`-th operation."""

    class Killing(_Watch):
        def operation(self, path: str) -> None:
            self.seen += 1
            if self.seen == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    return _begun(Killing(folder.absolute(), at, ""))


def resealed(folder: Path, **changes: Any) -> None:
    """Makes the record of an artefact fit its files again, with changes, as a stranger would."""
    commit = folder / artifacts.COMMIT
    record = json.loads(commit.read_text())
    for name, entry in record["files"].items():
        size, sha256 = (folder / name).stat().st_size, hashing.hash_file(folder / name)
        entry.update(size=size, sha256=sha256)
    commit.write_text(json.dumps(reading.sealed(record | changes)))
