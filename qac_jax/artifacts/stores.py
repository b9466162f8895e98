"""Object stores (gs://, s3://): inputs are fetched, outputs are uploaded when they are complete.

Libraries that map files into memory, lock or rename them need a local disk, so a stage whose --out
is an address works in a local copy; when the artefact is complete, its files are uploaded, the
commit last. Copies lie in the user's cache (QAC_STORES names another folder) at the same places to
one another as in the store; those of finished artefacts can be deleted any time.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from etils import epath

from qac_jax import hashing
from qac_jax.artifacts.reading import CLAIM, COMMIT, PART, inside, peek, place
from qac_jax.errors import UserError


VARIABLE = "QAC_STORES"
_SEPARATOR = "://"


def is_store(path: epath.PathLike) -> bool:
    return _SEPARATOR in os.fspath(path)


def local(address: epath.PathLike) -> epath.Path:
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
    if not (commit := _commit(source)):
        _fetch(source, target)
    elif commit != _commit(target):
        shutil.rmtree(target, ignore_errors=True)
        for name in (peek(source) or {}).get("files", {}):
            _fetch(source / inside(name), target / name)
        (target / COMMIT).write_text(commit)
    return target


def _commit(folder: epath.Path) -> str:
    return (folder / COMMIT).read_text() if (folder / COMMIT).exists() else ""


def present(path: epath.PathLike, named_in: epath.PathLike = "") -> None:
    """Fetches what lies beside a fetched artefact, if the path is a copy that is not here.

    named_in: the artefact that names the path. Whoever made it may be a stranger, so that only what
    lies in its own bucket is asked for.
    """
    address = origin(path)
    if named_in and address.split("/")[:3] != origin(named_in).split("/")[:3]:
        return
    if address and not os.path.exists(path) and (place(address) / COMMIT).exists():
        fetched(address)


def remove(address: epath.PathLike) -> None:
    """Removes the files of an artefact from a store, its commit first; refuses anything else."""
    target = place(address)
    record = _ours(target)
    for name in (COMMIT, *record.get("files", ())):
        (target / inside(name)).unlink(missing_ok=True)


@contextlib.contextmanager
def uploaded(address: epath.PathLike) -> Iterator[epath.Path]:
    """A local folder for an artefact, which is uploaded when the block ends without an error.

    What is unfinished stays here: the same command continues on this machine.
    """
    target, folder = place(address), local(address)
    here, there = peek(folder), _ours(target)
    if there.get("finished") and (here is None or here["finished"]):
        fetched(address)
    yield folder
    commit, before = _commit(folder), _commit(target)
    if before == commit:
        return
    if before:
        remove(address)
    target.mkdir(parents=True, exist_ok=True)
    (target / CLAIM).write_text(commit)  # if this is cut short, the folder is known as ours
    for name in (*(peek(folder) or {})["files"], COMMIT):
        _put(folder / name, target / name)
    (target / CLAIM).unlink()


def _ours(target: epath.Path) -> dict[str, Any]:
    """The record of a folder in a store; raises where it holds something and is not ours."""
    record = peek(target)
    if record is None and target.exists() and any(True for _ in target.iterdir()):
        raise UserError(f"{target} is not empty and not a folder of ours; choose another --out")
    return record or {}


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A local path for a file that may lie in a store; uploaded when the block ends."""
    if not is_store(path):
        yield path
        return
    copy = local(path)
    copy.parent.mkdir(parents=True, exist_ok=True)
    yield os.fspath(copy)
    if copy.exists():
        _put(copy, place(path))


def _fetch(source: epath.Path, target: epath.Path) -> None:
    """Copies a file, or a folder with all that it holds, if it is not here already."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for child in source.iterdir():
            _fetch(child, target / child.name)
        return
    status, here = source.stat(), os.fspath(target)
    if os.path.exists(here):
        known = os.stat(here)
        if (known.st_size, int(known.st_mtime)) == (status.length, int(status.mtime)):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as theirs, open(here + PART, "wb") as ours:
        shutil.copyfileobj(theirs, ours, 1 << 22)
    os.utime(here + PART, (status.mtime, status.mtime))
    os.replace(here + PART, here)


def _put(source: epath.Path, target: epath.Path) -> None:
    """Copies a file into a store, where it appears when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as ours, target.open("wb") as theirs:
        shutil.copyfileobj(ours, theirs, 1 << 22)


def _root() -> str:
    return os.path.abspath(os.environ.get(VARIABLE) or os.fspath(hashing.user_cache() / "stores"))
