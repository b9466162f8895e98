"""What gin files may name: settings of this package, and modules that the user allows.

With dynamic registration a gin file imports any module and calls any function in it, with arguments
of its choice: a recipe from a stranger would be a program. So a module is imported only if it
belongs to `qac_jax` or to a package named by `--gin_modules` (or in QAC_GIN_MODULES), and of
`qac_jax` only settings can be built: dataclasses, and functions marked with `fields.for_gin`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import gin

from qac_jax import fields
from qac_jax.errors import UserError


OURS = "qac_jax"
VARIABLE = "QAC_GIN_MODULES"
_ADVICE = (
    "gin files may name settings of qac_jax only; if you trust this file, allow the package with "
    "--gin_modules {0}"
)
# What gin itself offers in every file: macros, constants, singletons.
_BUILT_IN = (gin.config.macro, gin.config._retrieve_constant, gin.config.singleton)

_allowed: tuple[str, ...] = ()
# MODULE.CLASS as the files that were read spell it, where MODULE imports the class from another
# module: gin knows a class of ours under its own module only, whatever was registered first.
_spelt: dict[str, type] = {}


def allow(modules: Sequence[str]) -> None:
    """Allows these packages, and those of QAC_GIN_MODULES, to the files that are read next."""
    global _allowed
    _spelt.clear()
    named = [*modules, *os.environ.get(VARIABLE, "").split(",")]
    _allowed = tuple(part.strip() for text in named for part in text.split(",") if part.strip())


class _Context(gin.config.ParseContext):
    """Gin's context of one file; refuses a module before importing it, and a name before use."""

    def process_import(self, statement: Any) -> None:
        name = statement.module
        if not name.startswith("__gin__.") and not _within(name, (OURS, *_allowed)):
            package = name.split(".")[0]
            if importlib.util.find_spec(package) is None:  # looks for it only
                raise ModuleNotFoundError(f"No module named {package!r}")
            advice = _ADVICE.format(package)
            raise UserError(f"the module {name!r} is not imported: {advice}")
        super().process_import(statement)

    def get_configurable(self, selector: str) -> Any:
        if self._dynamic_registration:
            # Through the modules that a file may import one reaches those that they import.
            target = self._resolve_selector(selector)[1][-1]
        else:
            found = super().get_configurable(selector) or _as_files_spell(selector)
            if found is None:
                return None
            target = found.wrapped
        if not _permitted(target):
            home = getattr(target, "__module__", None) or type(target).__module__
            raise UserError(
                f"{selector!r} is refused: {_ADVICE.format(str(home).split('.')[0])}"
                if not _within(str(home), (OURS,))
                else f"{selector!r} is refused: it is a {type(target).__name__}, and gin files may "
                "name classes of settings only"
            )
        return super().get_configurable(selector) if self._dynamic_registration else found

    def _resolve_selector(self, selector: str) -> Any:
        names, values = super()._resolve_selector(selector)
        if isinstance(values[-1], type) and _within(values[-1].__module__, (OURS,)):
            _spelt[f"{getattr(values[-2], '__name__', '')}.{names[-1]}"] = values[-1]
        return names, values

    def _register(self, attr_names: Any, attr_values: Any) -> Any:
        cls = attr_values[-1]
        if not isinstance(cls, type) or not _within(cls.__module__, (OURS,)):
            return super()._register(attr_names, attr_values)
        gin.external_configurable(cls, name=cls.__qualname__, module=cls.__module__)
        return gin.config._inverse_lookup(cls)


def _as_files_spell(selector: str) -> Any:
    """The class that a binding of the command line names by a module that only imports it."""
    found = {cls for name, cls in _spelt.items() if f".{name}".endswith(f".{selector}")}
    return gin.config._inverse_lookup(found.pop()) if len(found) == 1 else None


gin.config.ParseContext = _Context


def _permitted(target: Any) -> bool:
    if any(target is known for known in _BUILT_IN):
        return True
    home = str(getattr(target, "__module__", None) or "")
    if _within(home, (OURS,)):
        settings = isinstance(target, type) and dataclasses.is_dataclass(target)
        return settings or fields.is_for_gin(target)
    return _within(home, _allowed)


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
