"""A packed folder and the code of the package as one file, and no larger than it may be."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import qac_jax
from qac_jax.errors import UserError
from qac_jax.evidence.layout import CODE, DESCRIPTION, Bundle


MIB = 1 << 20
_LISTED = 3
# Triples repeat the tokens of a passage for every question that it is a negative of: a window of
# this size sees the copies.
_WINDOW = 64 << 20
_PRESET = 3


def write(bundle: Bundle, packed: Path, target: Path, most: float) -> int:
    """Writes the bundle's file; raises, and leaves none, if it has more than `most` MiB."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    sizes: dict[str, int] = {}
    try:
        with _compressed(part) as tar:
            text = json.dumps(bundle.written(), ensure_ascii=False).encode()
            entry = tarfile.TarInfo(DESCRIPTION)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
            for name, path in _files(packed):
                sizes[_label(name, bundle)] = sizes.get(_label(name, bundle), 0) + _size(path)
                tar.add(path, name, recursive=False, filter=_plain)
            for name, path in code_files():
                sizes[CODE] = sizes.get(CODE, 0) + _size(path)
                tar.add(path, f"{CODE}/{name}", recursive=False, filter=_plain)
        size = _size(part)
        if size > most * MIB:
            largest = sorted(sizes, key=lambda label: -sizes[label])[:_LISTED]
            shown = ", ".join(f"{label} ({sizes[label] / MIB:.1f} MiB)" for label in largest)
            raise UserError(
                f"the bundle would have {size / MIB:.1f} MiB and may have {most:g}; its largest "
                f"parts, before they are compressed: {shown}; take a smaller collection or "
                "encoder, fewer systems, or raise --most"
            )
        os.replace(part, target)
        return size
    finally:
        part.unlink(missing_ok=True)


def _compressed(path: Path) -> tarfile.TarFile:
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "preset": _PRESET, "dict_size": _WINDOW}]
    file = lzma.open(path, "wb", format=lzma.FORMAT_XZ, filters=filters)
    tar = tarfile.open(fileobj=file, mode="w")
    closing = tar.close

    def close() -> None:
        closing()
        file.close()

    tar.close = close  # type: ignore[method-assign]
    return tar


def _label(name: str, bundle: Bundle) -> str:
    """What a file belongs to, as a user calls it: the stage's name, not its key."""
    parts = name.split("/")
    return parts[2] if parts[0] == "stages" and len(parts) > 2 else parts[0]


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, below, names in os.walk(root):
        below.sort()
        for name in sorted(names):
            path = Path(folder, name)
            yield path.relative_to(root).as_posix(), path


def code_files() -> Iterator[tuple[str, Path]]:
    """The package's Python files."""
    root = Path(qac_jax.__file__).parent
    for name, path in _files(root):
        if path.suffix == ".py" and not name.startswith("assets/"):
            yield f"{root.name}/{name}", path


def _size(path: Path) -> int:
    return path.stat().st_size


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the owner and the time, so that equal content gives equal bytes."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime, entry.mode = 0, 0o644
    return entry
