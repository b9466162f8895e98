"""Hashes of files, remembered in the user's cache by inode, size and time of change."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from etils import epath


# Smaller files are hashed each time, unless they are of an artefact.
_SMALL = 1 << 24


def user_cache() -> Path:
    """The folder of caches, which can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "qac_jax"


def hash_file(path: epath.PathLike) -> str:
    digest = hashlib.sha256()
    with epath.Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_once(path: str) -> str:
    """The same; that of a large local file is remembered."""
    if not os.path.exists(path) or os.stat(path).st_size < _SMALL:
        return hash_file(path)
    folder, name = os.path.split(os.path.realpath(path))
    return hashes(folder, [name])[name]


def hashes(
    folder: epath.PathLike, names: Iterable[str], *, expected: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The hashes of a folder's files: every version of a file is read once on a machine, and once
    more where what is remembered of it is not as `expected`."""
    known, news, found = _known(folder), dict[str, str](), dict[str, str]()
    for name in names:
        *signature, found[name] = known.get(name) or ("",)
        other = expected is not None and found[name] != expected[name]
        if other or signature != _signature(folder, name):
            news[name] = found[name] = hash_file(os.path.join(folder, name))
    if news:
        remember(folder, news)
    return found


def remember(folder: epath.PathLike, taken: Mapping[str, str]) -> None:
    """Notes hashes of a folder's files, such as those taken while they were written."""
    notes = {name: [*_signature(folder, name), sha256] for name, sha256 in taken.items()}
    there = {n: note for n, note in _known(folder).items() if os.path.exists(f"{folder}/{n}")}
    with contextlib.suppress(OSError):
        file = _notes(folder)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        user_cache().chmod(0o700)  # what is in it only its owner may read
        part = file.with_name(f"{file.name}.{os.getpid()}")
        text = json.dumps({**there, **notes})
        part.write_text(f"{_seal(text)}\n{text}")
        part.replace(file)


def _signature(folder: epath.PathLike, name: str) -> list[int]:
    status = os.stat(os.path.join(folder, name))
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _notes(folder: epath.PathLike) -> Path:
    place = os.path.realpath(folder).encode("utf-8", "surrogateescape")
    return user_cache() / "hashes" / f"{hashlib.sha256(place).hexdigest()}.json"


def _known(folder: epath.PathLike) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        seal, text = _notes(folder).read_text().split("\n")
        return dict(json.loads(text)) if seal == _seal(text) else {}
    return {}


def _seal(text: str) -> str:
    """Damage in the notes would name other hashes than the files have."""
    return hashlib.sha256(text.encode()).hexdigest()
