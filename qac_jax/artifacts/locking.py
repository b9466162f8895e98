"""One writer a folder: a lock that the kernel frees when its process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator

from etils import epath

from qac_jax.artifacts.reading import LOCK
from qac_jax.errors import Busy, UserError


@contextlib.contextmanager
def locked(path: epath.Path) -> Iterator[None]:
    """Holds the folder's lock; raises Busy where another process does."""
    if "://" in str(path):
        yield  # object stores have no locks; their folders are guarded by the claim alone
        return
    file = os.fspath(path / LOCK)
    with os.fdopen(_opened(file), "r+", errors="replace") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = lock.read(200).strip() or "another process"
            raise Busy(
                f"{path} is being written by {owner}; wait for it or choose another --out"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def _opened(file: str) -> int:
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        # What it leads to would be emptied.
        raise UserError(
            f"{file} is a link to {os.readlink(file)}, which no run has made; remove the link, or "
            "choose another --out"
        ) from None
