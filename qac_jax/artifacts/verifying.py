"""The bytes of artefacts are compared with their hashes when they are first used.

Damage of equal size (a disk's, a copy's) would otherwise give other results in silence. What was
compared is remembered in the user's cache by inode, size and time of change, so that every version
of a file is read once on a machine; what this machine has just written is known already.
QAC_VERIFY=0 (`--no_verify`) leaves it out; stores such as gs:// check what they hold themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epath

from qac_jax import hashing
from qac_jax.errors import UserError


VARIABLE = "QAC_VERIFY"
_BLOCK = 1 << 20

Json = dict[str, Any]


def check(path: epath.Path, files: Mapping[str, Json]) -> None:
    """Raises UserError where a file has other bytes than were written."""
    if not _is_wanted(path):
        return
    known = _read(path)
    news = {}
    for name, entry in files.items():
        if entry.get("volatile") or not entry["sha256"]:
            continue
        signature = _signature(path / name, entry["sha256"])
        if known.get(name) != signature:
            if hash_file(path / name) != entry["sha256"]:
                raise damaged(path / name)
            news[name] = signature
    if news:
        _write(path, {**known, **news}, files)


def remember(path: epath.Path, files: Mapping[str, Json], written: Iterable[str]) -> None:
    """Notes files whose hashes were taken from the bytes on their way to the disk."""
    if _is_wanted(path):
        known = {name: _signature(path / name, files[name]["sha256"]) for name in written}
        _write(path, known, files)


def hash_file(path: epath.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def damaged(path: epath.Path) -> UserError:
    return UserError(
        f"{path} is damaged: its bytes are not those that were written; remove the folder and "
        "make it again"
    )


def _is_wanted(path: epath.Path) -> bool:
    return os.environ.get(VARIABLE, "1") != "0" and "://" not in os.fspath(path)


def _signature(path: epath.Path, sha256: str) -> list[Any]:
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_mtime_ns, sha256]


def _file(path: epath.Path) -> epath.Path:
    name = hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()
    return epath.Path(hashing.user_cache()) / "verified" / f"{name}.json"


def _read(path: epath.Path) -> Json:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(_file(path).read_text())
        if isinstance(known, dict):
            return known
    return {}


def _write(path: epath.Path, known: Json, files: Mapping[str, Json]) -> None:
    with contextlib.suppress(OSError):
        file = _file(path)
        hashing.make_private(os.fspath(file.parent))
        part = file.parent / f"{file.name}.{os.getpid()}"
        part.write_text(json.dumps({name: known[name] for name in known if name in files}))
        part.replace(file)
