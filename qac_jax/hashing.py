"""Hashes of files; those of large ones are cached between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from etils import epath


# Smaller files are hashed each time.
_SMALL = 1 << 24


def user_cache() -> Path:
    """The folder of caches, which can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "qac_jax"


def make_private(folder: str) -> None:
    """Makes a folder of the cache; what is in the cache itself only its owner may read."""
    os.makedirs(user_cache(), mode=0o700, exist_ok=True)
    if os.stat(user_cache()).st_mode & 0o077:
        os.chmod(user_cache(), 0o700)
    os.makedirs(folder, mode=0o700, exist_ok=True)


def sha256_once(path: str) -> str:
    """The sha256 of a file; that of a large one is cached by path, size and modification time."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:  # not a local file
        return hashlib.sha256(epath.Path(path).read_bytes()).hexdigest()
    signature = f"{os.path.realpath(path)}\t{stat.st_size}\t{stat.st_mtime_ns}"
    large = stat.st_size >= _SMALL
    known = _remembered(signature) if large else None
    if known is None:
        with open(path, "rb") as file:
            known = hashlib.file_digest(file, "sha256").hexdigest()
        if large:
            _remember(signature, known)
    return known


def _file() -> Path:
    return user_cache() / "source_hashes.jsonl"


def _remembered(signature: str) -> str | None:
    sha256 = None
    with contextlib.suppress(OSError):
        for line in _file().read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError):
                record = json.loads(line)
                if record["file"] == signature:
                    sha256 = record["sha256"]
    return sha256


def _remember(signature: str, sha256: str) -> None:
    with contextlib.suppress(OSError):
        make_private(os.fspath(_file().parent))
        with _file().open("a") as file:
            file.write(json.dumps({"file": signature, "sha256": sha256}) + "\n")
