"""Where the gin files are that come with the package.

In `gin_configs/` of a checkout, and in the copy inside the package where it is installed from a
wheel.
"""

from __future__ import annotations

from pathlib import Path


FOLDER = "gin_configs"
_PACKAGE = Path(__file__).parent


def folder() -> Path:
    """The folder of all gin files."""
    inside = _PACKAGE / FOLDER
    return inside if inside.is_dir() else _PACKAGE.parent / FOLDER


def ships(path: str) -> bool:
    """Whether a gin file is one of those that come with the package."""
    return Path(path).resolve().is_relative_to(folder().resolve())


def names(room: str) -> tuple[str, ...]:
    """The gin files of one of its folders, without their ending."""
    return tuple(sorted(path.stem for path in (folder() / room).glob("*.gin")))
