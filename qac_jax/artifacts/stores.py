"""Object stores (gs://, s3://): inputs are fetched, outputs are written here and copied there.

Libraries that map files into memory, lock or rename them need a local disk, so a stage whose --out
is an address works in a local copy. What it completes is copied to the store every minute, the
commit last, so that another machine can continue. Copies lie in the user's cache (QAC_STORES names
another folder) at the same places to one another as in the store; they can be deleted any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

from etils import epath

from qac_jax import hashing, progress
from qac_jax.artifacts.reading import CLAIM, COMMIT, JOURNAL, LOCK, PART, place
from qac_jax.errors import UserError


VARIABLE = "QAC_STORES"
# Seconds between two copies of what has changed.
EVERY = 60.0
# What an unfinished folder in a store holds: name -> size.
MANIFEST = ".manifest.json"
# Checkpoints that Orbax has not completed.
_UNFINISHED = (".orbax-checkpoint-tmp", PART)
# These name other files, so they are copied after them.
_LAST = (JOURNAL, CLAIM)
_SEPARATOR = "://"


def is_store(path: epath.PathLike) -> bool:
    return _SEPARATOR in os.fspath(path)


def local(address: epath.PathLike) -> epath.Path:
    """Where the copy of an address lies."""
    scheme, _, rest = os.fspath(address).partition(_SEPARATOR)
    parts = [part for part in rest.split("/") if part]
    if not parts or {".", ".."} & set(parts):
        raise UserError(f"{address} is not an address in a store; give {scheme}://BUCKET/FOLDER")
    return epath.Path(_root(), scheme, *parts)


def origin(path: epath.PathLike) -> str:
    """The address that a copy has; "" for other paths."""
    inside = os.path.relpath(os.path.abspath(os.fspath(path)), _root())
    scheme, _, rest = inside.partition("/")
    return f"{scheme}{_SEPARATOR}{rest}" if rest and scheme not in (".", "..") else ""


def fetched(address: epath.PathLike) -> epath.Path:
    """The local copy of a file, a folder or an artefact, brought up to date."""
    source, target = place(address), local(address)
    if not source.exists():
        raise UserError(f"{address} does not exist; give an existing file or folder")
    if not (source / COMMIT).exists():
        _fetch(source, target)
        return target
    commit = (source / COMMIT).read_text()
    if (target / COMMIT).exists() and (target / COMMIT).read_text() == commit:
        return target
    with contextlib.suppress(FileNotFoundError):
        target.rmtree()
    for name in json.loads(commit).get("files", {}):
        _fetch(source / name, target / name)
    (target / COMMIT).write_text(commit)
    return target


def present(path: epath.PathLike) -> None:
    """Fetches what lies beside a fetched artefact, if the path is a copy that is not here."""
    address = origin(path)
    if address and not os.path.exists(path) and (place(address) / COMMIT).exists():
        fetched(address)


def remove(address: epath.PathLike) -> None:
    """Removes a folder of ours from a store, its commit first; refuses anything else."""
    target = place(address)
    if not target.exists():
        return
    if not _held(target) and any(True for _ in target.iterdir()):
        raise UserError(f"{target} is not a folder of ours, so it is not removed; do it yourself")
    (target / COMMIT).unlink(missing_ok=True)
    target.rmtree()


@contextlib.contextmanager
def mirrored(address: epath.PathLike) -> Iterator[epath.Path]:
    """A local folder for an output in a store, with what the store holds of it already."""
    target, folder = place(address), local(address)
    _bring(target, folder)
    mirror = _Mirror(folder, target)
    ended = threading.Event()

    def copy() -> None:
        while not ended.wait(EVERY):
            try:
                mirror.copy()
            except Exception as error:  # the last copy says it if it lasts
                progress.say(f"{target} cannot be written now ({error}); trying again")

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield folder
    except BaseException:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # of two errors the first one matters
            mirror.copy()
        raise
    ended.set()
    thread.join()
    mirror.copy(whole=True)


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A local path for a file that may lie in a store; copied there when the block ends."""
    if not is_store(path):
        yield path
        return
    copy = local(path)
    copy.parent.mkdir(parents=True, exist_ok=True)
    yield os.fspath(copy)
    if copy.exists():
        _put(copy, place(path))


class _Mirror:
    """Copies a local folder into a store: what has changed since the last time."""

    def __init__(self, folder: epath.Path, target: epath.Path):
        self._folder, self._target = folder, target
        self._sizes = _held(target)
        self._known = {n: s for n, s in self._files() if self._sizes.get(n) == s[0]}

    def copy(self, whole: bool = False) -> None:
        """`whole`: the artefact is complete, and its commit goes last."""
        if (self._folder / COMMIT).exists() and not whole:
            return  # it was complete before, or is so now
        if COMMIT in self._sizes and not whole:  # it is made again
            (self._target / COMMIT).unlink(missing_ok=True)
        found = dict(self._files())
        last = (*_LAST, COMMIT)
        for name in sorted(found, key=lambda n: (last.index(n) + 1 if n in last else 0, n)):
            if name == COMMIT:
                self._remove(found)
            if self._known.get(name) != found[name]:
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    self._sizes[name] = _put(self._folder / name, self._target / name)
                    self._known[name] = found[name]
        if whole:
            (self._target / MANIFEST).unlink(missing_ok=True)
        else:
            kept = {name: size for name, size in self._sizes.items() if name in found}
            self._target.mkdir(parents=True, exist_ok=True)
            (self._target / MANIFEST).write_text(json.dumps(kept))
            self._remove(found)

    def _remove(self, found: dict[str, Any]) -> None:
        for name in [name for name in self._sizes if name not in found]:
            (self._target / name).unlink(missing_ok=True)
            self._sizes.pop(name)
            self._known.pop(name, None)

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, below, names in os.walk(self._folder):
            below[:] = [name for name in below if not any(u in name for u in _UNFINISHED)]
            for name in names:
                path = os.path.join(folder, name)
                if name == LOCK or any(u in name for u in _UNFINISHED):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path)
                    inside = os.path.relpath(path, self._folder)
                    yield inside, (status.st_size, status.st_mtime_ns)


def _bring(source: epath.Path, folder: epath.Path) -> None:
    """What an earlier run has left in the store, finished or not."""
    if (source / COMMIT).exists():
        fetched(source)
        return
    (folder / COMMIT).unlink(missing_ok=True)
    names = _held(source)
    if not names and source.exists() and any(True for _ in source.iterdir()):
        raise UserError(f"{source} is not empty and not a folder of ours; choose another --out")
    for name, size in names.items():
        there = source / name
        if there.exists() and (there.stat().length == size or name in _LAST):
            _fetch(there, folder / name)


def _held(source: epath.Path) -> dict[str, int]:
    """The files of a folder in a store, finished or not: name -> size."""
    if (source / COMMIT).exists():
        text = (source / COMMIT).read_text()
        files = json.loads(text).get("files", {})
        return {COMMIT: len(text.encode()), **{name: files[name]["size"] for name in files}}
    with contextlib.suppress(OSError, ValueError):
        if (source / MANIFEST).exists():
            names = json.loads((source / MANIFEST).read_text())
            return {n: s for n, s in names.items() if ".." not in n.split("/") and n[:1] != "/"}
    return {}


def _fetch(source: epath.Path, target: epath.Path) -> None:
    """Copies a file, or a folder with all that it holds, if it is not here already."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for child in source.iterdir():
            _fetch(child, target / child.name)
        return
    status = source.stat()
    here = os.fspath(target)
    with contextlib.suppress(FileNotFoundError):
        known = os.stat(here)
        if (known.st_size, int(known.st_mtime)) == (status.length, int(status.mtime)):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as theirs, open(here + PART, "wb") as ours:
        shutil.copyfileobj(theirs, ours, 1 << 22)
    os.utime(here + PART, (status.mtime, status.mtime))
    os.replace(here + PART, here)


def _put(source: epath.Path, target: epath.Path) -> int:
    """Copies a file into a store, where it appears when it is whole; returns its size."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(os.fspath(source), "rb") as ours, target.open("wb") as theirs:
        shutil.copyfileobj(ours, theirs, 1 << 22)
        return ours.tell()


def _root() -> str:
    return os.path.abspath(os.environ.get(VARIABLE) or os.fspath(hashing.user_cache() / "stores"))
