"""The package's gin files, and its extras with the remedy where one is missing.

Extras are read from the metadata of the installed package. Gin files lie in `gin_configs/` of a
checkout, and in a copy inside the package where it is installed from a wheel.
"""

import importlib
import pkgutil
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from qac_jax.errors import UserError


PACKAGE = "qac_jax"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,. -]+)\])?[^;]*; *extra == ['\"]([\w.-]+)['\"]")


def gin_folder() -> Path:
    package = Path(__file__).parent
    inside = package / "gin_configs"
    return inside if inside.is_dir() else package.parent / "gin_configs"


def ships(path: str) -> bool:
    """Whether a gin file is one of those that come with the package."""
    return Path(path).resolve().is_relative_to(gin_folder().resolve())


def gin_names(room: str) -> tuple[str, ...]:
    """The gin files of one of its folders, without their ending."""
    return tuple(sorted(path.stem for path in (gin_folder() / room).glob("*.gin")))


def modules(package: str) -> list[ModuleType]:
    """The modules of a package, imported, without packages in it."""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return [importlib.import_module(f"{package}.{m.name}") for m in found if not m.ispkg]


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


def listed() -> dict[str, dict[str, str]]:
    """The packages of every extra: package -> its version here ("": it is not installed)."""
    try:
        names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a folder of its source
        return {}
    return {name: dict(sorted(_brought(PACKAGE, name).items())) for name in sorted(names)}


def _brought(package: str, extra: str) -> dict[str, str]:
    """The packages of an extra, with those of extras in it: ours, and those of other packages."""
    brought: dict[str, str] = {}
    for match in filter(None, map(_REQUIREMENT.match, metadata.requires(package) or [])):
        name, within, condition = match.groups()
        if condition != extra:
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        if name.replace("-", "_") != PACKAGE:
            brought[name] = version
        for each in (within or "").split(",") if version else ():
            brought |= _brought(name, each.strip())
    return brought
