"""The files of a folder in sorted order, and what in it is not read, with the reason.

Links are never followed: what they lead to is either read under its own name or not in the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from qac_jax import artifacts
from qac_jax.artifacts.reading import CLAIM
from qac_jax.formats.bad_lines import Skipped
from qac_jax.formats.pages import EMPTY


# Folders that programs fill for themselves.
_OF_PROGRAMS = frozenset({"__pycache__", "node_modules", "__MACOSX", "site-packages"})
# A collection's own files in BEIR's layout, which are not documents.
_QUERIES, _JUDGEMENTS = ("queries.jsonl", "queries.tsv"), "qrels"


class Walk(NamedTuple):
    """(path below the folder, file, size) of what is read, and what is not."""

    files: list[tuple[str, str, int]]
    skipped: list[Skipped]


def walk(root: str, suffixes: Collection[str], limit: int) -> Walk:
    """All files below a folder with these suffixes (lower case; "": names without a dot)."""
    found = Walk([], [])
    top = os.path.realpath(root)
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, below)), key=lambda one: one.name)
        except OSError as error:
            found.skipped.append(Skipped(shown(below) or ".", "unreadable", error.strerror or ""))
            continue
        for entry in entries:
            path = os.path.join(below, entry.name)
            if reason := _refused(entry, path, top, suffixes, limit):
                found.skipped.append(Skipped(shown(path), *reason))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                size = entry.stat(follow_symlinks=False).st_size
                found.files.append((shown(path), os.path.join(root, path), size))
    found.files.sort(key=lambda one: one[0].split("/"))
    found.skipped.sort()
    return found


def shown(path: str) -> str:
    """A path as text, whatever bytes its names hold."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _refused(
    entry: os.DirEntry[str], path: str, top: str, suffixes: Collection[str], limit: int
) -> tuple[str, str] | None:
    """(reason, detail) why an entry is not read; None where it is."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        inside = os.path.commonpath([top, target]) == top
        return f"link {'within' if inside else 'out of'} the folder", shown(os.readlink(entry.path))
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return "unreadable", error.strerror or ""
    folder = stat.S_ISDIR(status.st_mode)
    if entry.name.startswith("."):
        return f"hidden {'folder' if folder else 'file'}", ""
    if not folder and not stat.S_ISREG(status.st_mode):
        return "neither a file nor a folder", ""
    if not os.access(entry.path, os.R_OK | (os.X_OK if folder else 0)):
        return "unreadable", "no permission"
    return _folder(entry, path) if folder else _file(entry, path, status.st_size, suffixes, limit)


def _folder(entry: os.DirEntry[str], path: str) -> tuple[str, str] | None:
    if entry.name in _OF_PROGRAMS:
        return "folder of a program", ""
    if any(os.path.exists(os.path.join(entry.path, n)) for n in (artifacts.COMMIT, CLAIM)):
        return "result of this program", ""
    return ("queries and judgements", "") if path == _JUDGEMENTS else None


def _file(
    entry: os.DirEntry[str], path: str, size: int, suffixes: Collection[str], limit: int
) -> tuple[str, str] | None:
    if path in _QUERIES:
        return "queries and judgements", ""
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix not in suffixes:
        return "other kind of file", suffix
    if size == 0:
        return EMPTY, ""
    if size > limit:
        return "too large", f"{size / (1 << 20):,.0f} MB; up to {limit >> 20} are read"
    return None
