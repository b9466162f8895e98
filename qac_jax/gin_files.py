"""The gin files that come with the package: where they are, and what their headers say.

They are read from `gin_configs/` of a checkout, and from the copy inside the package where it is
installed from a wheel.

A header is the comment at the top of a file: what the file is, how it is run, `Set:` what must be
set, and `Commonly overridden:`.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from qac_jax.errors import UserError, nearest


FOLDER = "gin_configs"
_PACKAGE = Path(__file__).parent

_SET = re.compile(r"^Set: (.+?)(?:^Commonly overridden:|\Z)", re.S | re.M)
_OVERRIDDEN = re.compile(r"^Commonly overridden: (.+)", re.S | re.M)
_END = re.compile(r"[.?](?=\s+[A-Z]|\s*$)")  # of a sentence; not that of "et al., 2023"
_INCLUDE = re.compile(r"^include ['\"]([^'\"]+)['\"]", re.M)
_MACRO = re.compile(r"^([A-Z][A-Z0-9_]*) *= *(.+?) *(?:#.*)?$", re.M)
_GRID = re.compile(r"^grid\.Grid[.:]", re.M)
_REQUIRED = "%gin.REQUIRED"


@dataclasses.dataclass(frozen=True)
class Header:
    """What a gin file says about itself."""

    name: str
    summary: str  # its first sentence
    needs: str  # what must be set; "" for nothing
    overridden: str  # what is commonly overridden
    required: tuple[str, ...]  # macros without a value
    grid: bool  # whether it describes a grid of runs
    text: str  # the whole header


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


def recipes() -> list[Header]:
    """The headers of all recipes and grids."""
    return [recipe(name) for name in names("recipes")]


def recipe(name: str) -> Header:
    """The header of one recipe."""
    path = folder() / "recipes" / f"{name}.gin"
    if not path.is_file():
        raise UserError(f"{name!r} is not a recipe; {nearest(name, names('recipes'))}")
    return header(path)


def header(path: Path) -> Header:
    """The header of a gin file."""
    content = path.read_text(encoding="utf-8")
    text = _comment(content)
    needs = _SET.search(text)
    more = _OVERRIDDEN.search(text)
    stated = _sentence(needs[1]) if needs else ""
    return Header(
        name=path.stem,
        summary=_sentence(text.split("\n\n")[0]),
        needs="" if stated == "nothing" else stated,
        overridden=_line(more[1]).rstrip(".") if more else "",
        required=tuple(sorted(n for n, v in _macros(path).items() if v == _REQUIRED)),
        grid=_GRID.search(content) is not None,
        text=text,
    )


def includes(path: Path) -> list[str]:
    """The files that a gin file includes, as it names them."""
    return _INCLUDE.findall(path.read_text(encoding="utf-8"))


def _comment(content: str) -> str:
    lines = []
    for line in content.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()


def _macros(path: Path) -> dict[str, str]:
    """The macros of a file and of those that it includes; later values replace earlier ones."""
    content = path.read_text(encoding="utf-8")
    macros: dict[str, str] = {}
    for included in includes(path):
        if (file := folder() / included).is_file():
            macros |= _macros(file)
    return macros | dict(_MACRO.findall(content))


def _sentence(text: str) -> str:
    """The first sentence, in one line."""
    return _END.split(_line(text))[0]


def _line(text: str) -> str:
    return " ".join(text.split())
