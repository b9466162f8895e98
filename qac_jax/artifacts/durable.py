"""Files that outlive a loss of power: what is written reaches the disk before it is relied upon.

QAC_FSYNC=0 (`--no_fsync`) leaves it out. Stores such as gs:// promise it with every write.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable

from etils import epath


VARIABLE = "QAC_FSYNC"
# File systems that cannot do it, such as some network mounts for folders, say one of these.
_IMPOSSIBLE = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES, errno.EROFS, errno.EISDIR)


def link(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
    """The same bytes under another name; for files that nothing changes in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def file(path: os.PathLike[str]) -> None:
    """Returns when the bytes of a file are on the disk."""
    _sync(os.fspath(path))


def folder(path: os.PathLike[str]) -> None:
    """Returns when the names in a folder are on the disk."""
    _sync(os.fspath(path))


def folders(path: os.PathLike[str], files: Iterable[str]) -> None:
    """The same for a folder and all folders in it that hold these files."""
    below = {os.path.dirname(name) for name in files}
    for name in sorted({"", *below, *(parent for b in below for parent in _parents(b))}):
        _sync(os.path.join(os.fspath(path), name))


def make_folder(path: epath.Path) -> None:
    """Makes a folder and those above it; returns when their names are on the disk."""
    if "://" in os.fspath(path):
        path.mkdir(parents=True, exist_ok=True)
        return
    new = [parent for parent in path.parents if not parent.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # Its own name always: a run that was killed may have made it.
    for each in (path, *new):
        _sync(os.fspath(each.parent))


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _sync(path: str) -> None:
    if os.environ.get(VARIABLE, "1") == "0" or "://" in path:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
    finally:
        os.close(descriptor)
