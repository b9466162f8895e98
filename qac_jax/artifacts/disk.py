"""Folders on disks: links, one writer a folder, and bytes that outlive a loss of power.

What is written reaches the disk (fsync) before it is relied upon; QAC_FSYNC=0 leaves that out.
Stores such as gs:// promise it with every write, and have no locks.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from etils import epath

from qac_jax.errors import Busy, UserError


VARIABLE = "QAC_FSYNC"
LOCK, _OWNER = ".lock", "process "
# File systems that cannot do it, such as some network mounts for folders, say one of these.
_IMPOSSIBLE = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES, errno.EROFS, errno.EISDIR)


def link(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
    """The same bytes under another name; for files that nothing changes in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def folders(path: os.PathLike[str], files: Iterable[str]) -> None:
    """The same for a folder and all folders in it that hold these files."""
    below = {parent for name in files for parent in PurePosixPath(name).parents}
    for name in sorted(below | {PurePosixPath()}):
        file(os.path.join(path, name))


def absent(path: epath.Path) -> list[epath.Path]:
    """A folder and those above it, as far as they do not exist."""
    return [each for each in (path, *path.parents) if not each.exists()]


def make_folder(path: epath.Path) -> None:
    """Makes a folder and those above it; returns when their names are on the disk."""
    new = absent(path)
    path.mkdir(parents=True, exist_ok=True)
    # Its own name always: a run that was killed may have made it.
    for each in dict.fromkeys((path, *new)):
        file(each.parent)


def file(path: os.PathLike[str] | str) -> None:
    """Returns when the bytes of a file, or the names in a folder, are on the disk."""
    if os.environ.get(VARIABLE, "1") == "0":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise


@contextlib.contextmanager
def locked(path: epath.Path) -> Iterator[None]:
    """Holds the folder's lock; raises Busy where another process does."""
    file = os.fspath(path / LOCK)
    with os.fdopen(_opened(file), "r+", errors="replace") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = lock.read(200).strip() or "another process"
            raise Busy(
                f"{path} is being written by {owner}; wait for it or choose another --out"
            ) from None
        # Another program's, or a file that has another name elsewhere: it would be emptied.
        owned = _OWNER.startswith(lock.read(len(_OWNER)))
        if not owned or os.fstat(lock.fileno()).st_nlink != 1:
            raise UserError(
                f"{file} is not a lock of ours; move it elsewhere, or choose another --out"
            )
        lock.seek(0)
        lock.truncate(0)
        lock.write(f"{_OWNER}{os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def _opened(file: str) -> int:
    if os.path.exists(file) and not os.path.isfile(file):
        raise UserError(f"{file} is not a file; remove it, or choose another --out")
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
