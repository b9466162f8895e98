"""Recipes: functions that add stages to a run; one paper's road, or one purpose, a file.

A recipe takes `run` and its own parameters, or one dataclass whose fields are its parameters. It
calls `run(Stage, "name", …)` for each stage and passes on what that returns, the reference to the
stage's output; nothing runs meanwhile. A function without `run` returns a grid: a recipe with
several systems and seeds. Functions whose docstring has a line `Set: …` can be run by their name.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qac_jax import extras
from qac_jax.errors import UserError, nearest


_SET = re.compile(r"^Set: (.+?)(?:^Commonly overridden:|\Z)", re.S | re.M)
_OVERRIDDEN = re.compile(r"^Commonly overridden: (.+)", re.S | re.M)
_END = re.compile(r"[.?](?=\s+[A-Z]|\s*$)")  # of a sentence; not that of "et al., 2023"
_NAMED = re.compile(r"^recipe = @qac\.(\w+)\(\)", re.M)


@dataclasses.dataclass(frozen=True)
class Header:
    """What a recipe or grid says about itself."""

    name: str
    module: str  # "": a gin file
    grid: bool
    text: str

    @property
    def summary(self) -> str:
        """Its first sentence."""
        return _sentence(self.text.split("\n\n")[0])

    @property
    def needs(self) -> str:
        """What must be set; "" for nothing."""
        stated = _SET.search(self.text)
        needs = _sentence(stated[1]) if stated else ""
        return "" if needs == "nothing" else needs

    @property
    def overridden(self) -> str:
        """What is commonly overridden."""
        stated = _OVERRIDDEN.search(self.text)
        return " ".join(stated[1].split()).rstrip(".") if stated else ""


@functools.cache
def functions() -> Mapping[str, Header]:
    """Every recipe and grid of this folder, read without importing it."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            text = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) or ""
            if isinstance(node, ast.FunctionDef) and "\nSet: " in text:
                grid = not (node.args.args and node.args.args[0].arg == "run")
                found[node.name] = Header(node.name, path.stem, grid, text)
    return found


def function(name: str) -> Callable[..., Any]:
    """The recipe or grid of this name."""
    if name not in functions():
        raise UserError(f"{name!r} is not a recipe; {nearest(name, functions())}")
    module = importlib.import_module(f"{__name__}.{functions()[name].module}")
    recipe: Callable[..., Any] = getattr(module, name)
    return recipe


@functools.cache
def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a recipe, or of another function, by name and with evaluated types."""
    settings = _settings(function)
    named = dict(inspect.signature(function).parameters)
    hints = typing.get_type_hints(function)
    if settings:
        named = {"run": named["run"], **inspect.signature(settings[1]).parameters}
        hints = typing.get_type_hints(settings[1])
    return {n: p.replace(annotation=hints.get(n, Any)) for n, p in named.items()}


def call(function: Callable[..., Any], run: Any, values: Mapping[str, Any]) -> None:
    """Calls a recipe with these values of its parameters."""
    settings = _settings(function)
    function(run, **({settings[0]: settings[1](**values)} if settings else values))


def _settings(function: Callable[..., Any]) -> tuple[str, Any] | None:
    """The parameter that is a dataclass, and its class."""
    hints = typing.get_type_hints(function)
    classes = ((name, hint) for name, hint in hints.items() if dataclasses.is_dataclass(hint))
    return next((each for each in classes if each[0] != "return"), None)


def headers() -> dict[str, Header]:
    """All that `qac run` finds by name: functions, and the gin files that bind one."""
    bound = {}
    for name in extras.gin_names("recipes"):
        content = (extras.gin_folder() / "recipes" / f"{name}.gin").read_text(encoding="utf-8")
        comment = re.match(r"(#.*\n)+", content)
        text = re.sub(r"^# ?", "", comment[0], flags=re.M) if comment else ""
        named = _NAMED.search(content)
        grid = named is not None and named[1] in functions() and functions()[named[1]].grid
        bound[name] = Header(name, "", grid, text.strip())
    return dict(sorted({**functions(), **bound}.items()))


def header(name: str) -> Header:
    """What one of them says about itself."""
    if name not in headers():
        raise UserError(f"{name!r} is not a recipe; {nearest(name, headers())}")
    return headers()[name]


def _sentence(text: str) -> str:
    """The first sentence, in one line."""
    return _END.split(" ".join(text.split()))[0]
