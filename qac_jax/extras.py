"""What comes with the package: its gin files, and its extras with the remedy where one is missing.

Extras are read from the metadata of the installed package. Gin files lie in `gin_configs/` of a
checkout, and in a copy inside the package where it is installed from a wheel.
"""

import dataclasses
import importlib
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from qac_jax.errors import UserError


PACKAGE = "qac_jax"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,. -]+)\])?([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"extra == ['\"]([\w.-]+)['\"]")


def gin_folder() -> Path:
    """The folder of all gin files."""
    package = Path(__file__).parent
    inside = package / "gin_configs"
    return inside if inside.is_dir() else package.parent / "gin_configs"


def ships(path: str) -> bool:
    """Whether a gin file is one of those that come with the package."""
    return Path(path).resolve().is_relative_to(gin_folder().resolve())


def gin_names(room: str) -> tuple[str, ...]:
    """The gin files of one of its folders, without their ending."""
    return tuple(sorted(path.stem for path in (gin_folder() / room).glob("*.gin")))


@dataclasses.dataclass(frozen=True)
class Brought:
    """A package that an extra brings."""

    name: str
    wanted: str  # the versions that fit, such as "<3,>=2.77"; "" for any
    version: str  # the one that is installed; "" for none


def remedy(extra: str) -> str:
    return f"pip install '{PACKAGE}[{extra}]'"


def load(module: str, extra: str, what: str) -> Any:
    """Imports a module that an extra brings; `what` begins the sentence where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{what} needs {module}, which is not installed; {remedy(extra)}"
        ) from error


def listed() -> dict[str, list[Brought]]:
    """Every extra of the installed package and what it brings; none where nothing is installed."""
    try:
        names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a folder of its source
        return {}
    return {
        name: sorted(_brought(PACKAGE, name), key=lambda one: one.name) for name in sorted(names)
    }


def _brought(package: str, extra: str) -> set[Brought]:
    """What an extra brings, with what extras in it bring: ours, and those of other packages."""
    brought = set()
    for text in metadata.requires(package) or []:
        match = _REQUIREMENT.match(text)
        condition = _EXTRA.search(match[4] or "") if match else None
        if match is None or condition is None or condition[1] != extra:
            continue
        name, within, wanted, _ = match.groups()
        ours, version = name.replace("-", "_") == PACKAGE, _version(name)
        if not ours:
            brought.add(Brought(name, wanted.strip(), version))
        if within and (ours or version):
            brought |= {one for e in within.split(",") for one in _brought(name, e.strip())}
    return brought


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
