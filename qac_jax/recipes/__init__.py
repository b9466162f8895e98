"""Recipes: functions that add stages to a run; one paper's road, or one purpose, a file.

A recipe takes `run` and its own parameters, or one dataclass whose fields are its parameters. It
calls `run(Stage, "name", …)` for each stage and passes on what that returns, the reference to the
stage's output; nothing runs meanwhile. A function without `run` returns a grid: a recipe with
several systems and seeds. Functions whose docstring has a line `Set: …` can be run by their name.
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from qac_jax import extras
from qac_jax.errors import UserError, nearest


_NAMED = re.compile(r"^recipe = @qac\.(\w+)\(\)", re.M)


@dataclasses.dataclass(frozen=True)
class Header:
    """The docstring of a recipe or grid, in its parts."""

    name: str
    grid: bool
    text: str

    @property
    def summary(self) -> str:
        """Its first sentence."""
        return _sentence(self.text)

    @property
    def needs(self) -> str:
        """The parameters that must be set; "" for none."""
        needs = _sentence(self.text.partition("Set: ")[2].partition("Commonly overridden:")[0])
        return "" if needs == "nothing" else needs


@functools.cache
def functions() -> Mapping[str, Callable[..., Any]]:
    """Every recipe and grid of this folder."""
    return {
        name: found
        for module in extras.modules(__name__)
        for name, found in vars(module).items()
        if getattr(found, "__module__", "") == module.__name__ and "Set: " in (found.__doc__ or "")
    }


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


@functools.cache
def headers() -> Mapping[str, Header]:
    """All that `qac run` finds by name: functions, and the gin files that bind one."""
    found = {
        name: Header(name, "run" not in parameters(function), inspect.getdoc(function) or "")
        for name, function in functions().items()
    }
    for name in extras.gin_names("recipes"):
        content = (extras.gin_folder() / "recipes" / f"{name}.gin").read_text(encoding="utf-8")
        comment, named = re.match(r"(#.*\n)*", content), _NAMED.search(content)
        text = re.sub(r"^# ?", "", comment[0], flags=re.M).strip() if comment else ""
        found[name] = Header(name, named is not None and found[named[1]].grid, text)
    return dict(sorted(found.items()))


def header(name: str) -> Header:
    """The docstring of one of them, in its parts."""
    if name not in headers():
        raise UserError(f"{name!r} is not a recipe; {nearest(name, headers())}")
    return headers()[name]


def _sentence(text: str) -> str:
    """The first sentence, in one line; "et al., 2023" ends none."""
    return re.split(r"[.?](?=\s+[A-Z]|\s*$)", " ".join(text.split("\n\n")[0].split()))[0]
