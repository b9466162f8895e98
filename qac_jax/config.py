"""Gin: files, bindings and flags build the stages; no other module imports gin.

Order of precedence: flag, then `--gin.NAME=VALUE`, then file (DESIGN.md, "Stage"). Gin's own
errors become one sentence with the nearest valid name.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util  # gin 0.5 uses it without importing it
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from qac_jax import fields, gin_files, gin_guard, gin_usage
from qac_jax.errors import UserError, nearest


assert importlib.util

_FLAG = "--gin."
# What begins as a value of gin's; all else that Python cannot read is a bare text.
_OF_GIN = ("@", "%", "[", "{", "(", "'", '"')
# A class that is named, and not made: the brackets are missing.
_UNMADE = re.compile(r"@[\w./]+")
_IN_CALL, _IN_FILE = "\n  In call to configurable", "\n  In "
_REQUIRED = "%gin.REQUIRED"
_LONGEST_FILE = 1 << 20  # characters of a gin file, which takes gin's parser minutes
_LONGEST = 200  # characters of a value in a message
_NO_VALUE = "macro %{0} has no value; pass --gin.{0}=VALUE or write it in a file"


# What each overlay and each binding of the command line set; the macros of all other files.
_set_by: dict[str, list[gin_usage.Bound]] = {}
_of_files: set[str] = set()
_shipped: set[str] = set()  # overlays that come with the package


@dataclasses.dataclass(frozen=True)
class Settings:
    """The configuration of a command line: files, `--gin.…` bindings, flags and macros.

    Overlays are files that are read after the others, and whose settings must be used.
    """

    files: Sequence[str] = ()
    search_paths: Sequence[str] = ()
    bindings: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    macros: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    modules: Sequence[str] = ()  # packages beside ours that the files may name
    overlays: Sequence[str] = ()


def register(classes: Iterable[type]) -> None:
    """Registers classes and their parts with gin under their module and name."""
    for cls in classes:
        register(fields.parts(cls).values() if dataclasses.is_dataclass(cls) else ())
        selector = f"{cls.__module__}.{cls.__qualname__}"
        if not _is_registered(selector):
            gin.external_configurable(cls, name=cls.__qualname__, module=cls.__module__)


def apply(settings: Settings) -> None:
    """Clears gin's configuration and reads the settings in the order of precedence."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # gin logs an error for every folder without an included file
    try:
        _read(settings)
    finally:
        logging.disable(before)


def _read(settings: Settings) -> None:
    gin.clear_config()
    gin_guard.allow(settings.modules)
    _set_by.clear()
    _shipped.clear()
    _search_only(_search_paths(tuple(settings.search_paths)))
    for name, value in settings.macros.items():
        _guarded(lambda n=name, v=value: gin.parse_config(f"{n} = {v!r}"), f"{name}")
    for file in settings.files:
        resolved = _resolve(file, settings.search_paths)
        _guarded(functools.partial(gin.parse_config_file, resolved), file)
    _of_files.clear()
    _of_files.update(scope for scope, name in gin.config._CONFIG if name == gin_usage.MACRO)
    for file in settings.overlays:
        resolved = _resolve(file, settings.search_paths)
        included: list[gin_usage.Bound] = []
        own: list[gin_usage.Bound] = []
        with gin_usage.noted(included):
            for name in [] if gin_files.ships(resolved) else gin_files.includes(Path(resolved)):
                path = _resolve(name, settings.search_paths)
                _guarded(functools.partial(gin.parse_config_file, path), name)
        with gin_usage.noted(own):
            _guarded(functools.partial(gin.parse_config_file, resolved), file)
        _set_by[file] = [bound for bound in own if bound not in included]
        if gin_files.ships(resolved):
            _shipped.add(file)
    for name, value in settings.macros.items():
        _guarded(lambda n=name, v=value: gin.parse_config(f"{n} = {v!r}"), f"{name}")
    for binding in settings.bindings:
        if "=" not in binding:
            raise UserError(f"--gin.{binding} has no value; write --gin.NAME=VALUE")
        name = f"{_FLAG}{binding.partition('=')[0].strip()}"
        with gin_usage.noted(_set_by.setdefault(name, [])):
            _guarded(functools.partial(gin.parse_config, quoted(binding)), f"{_FLAG}{binding}")
    for name, value in settings.flags.items():
        _guarded(functools.partial(gin.bind_parameter, name, value), f"--{name.rsplit('.', 1)[-1]}")


def quoted(binding: str) -> str:
    """NAME=VALUE with quotes around a bare text, which shells take away from a user's quotes."""
    name, _, value = (part.strip() for part in binding.partition("="))
    if _UNMADE.fullmatch(value):
        raise UserError(
            f"--gin.{name}={value} names {value[1:]} without making one; write "
            f"--gin.{name}='{value}()', with brackets and quotes"
        )
    if not value or value.startswith(_OF_GIN):
        return binding
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return f"{name}={value!r}"
    return binding


def unused() -> dict[str, str]:
    """Overlays and bindings that changed nothing in what was built since, and why.

    What ships may say more than one recipe needs, so it must change something; of a user's own
    every setting must.
    """
    reasons, used = {}, gin_usage.Used.now(_of_files)
    for label, bound in _set_by.items():
        lacks = [(one, why) for one in bound if (why := used.lacks(one))]
        of_file = not label.startswith(_FLAG)
        if lacks and (len(lacks) == len(bound) or label not in _shipped):
            one, why = lacks[0]
            reasons[label] = f"{label}{f': {one}' if of_file else ''} changes nothing: {why}"
    return reasons


def macros(
    files: Sequence[str], search_paths: Sequence[str] = (), modules: Sequence[str] = ()
) -> list[str]:
    """The macros that gin files give a value to."""
    apply(Settings(files, search_paths, modules=modules))
    return sorted({scope for scope, name in gin.config._CONFIG if name == gin_usage.MACRO})


def build(cls: type, *, check: bool = True) -> Any:
    """The instance that the bindings describe, with its fields checked."""
    selector = f"{cls.__module__}.{cls.__qualname__}"
    with fields.parts_made_by(_part):
        instance = _guarded(lambda: gin.get_configurable(selector)(), cls.__qualname__)
    try:
        if check:
            fields.check(instance)
    except UserError as error:
        if missing := _required_macros():
            field = str(error).split("; pass ")[0]  # "NAME is not set"
            raise UserError(f"{field}: {_NO_VALUE.format(missing[0])}") from error
        raise
    return instance


def _part(cls: type) -> Any:
    """A part of a stage by its bindings, in the scope of the stage that is being built."""
    try:
        configurable = gin.get_configurable(cls)
    except ValueError:  # no file and no flag names it
        return cls()
    return configurable()


def _search_only(paths: Sequence[str]) -> None:
    """Replaces gin's search paths, to which gin itself only ever appends."""
    known = gin.config._LOCATION_PREFIXES
    known[:] = [known[0]]
    for path in paths:
        gin.add_config_file_search_path(path)


def _required_macros() -> list[str]:
    """The macros that a file declares as `%gin.REQUIRED` and that nothing has set."""
    macros = {
        scope: bound
        for (scope, name), bound in gin.config._CONFIG.items()
        if name == gin_usage.MACRO
    }
    return sorted(name for name, bound in macros.items() if repr(bound.get("value")) == _REQUIRED)


def binds(cls: type) -> bool:
    """Whether anything is bound to this class."""
    selector = f"{cls.__module__}.{cls.__qualname__}"
    return any(name == selector for _, name in gin.config._CONFIG)


def text() -> str:
    """The active bindings as gin text: documentation, never read back."""
    return gin.config_str()


@functools.cache
def _search_paths(extra: tuple[str, ...]) -> tuple[str, ...]:
    """The user's folders, and gin_configs by name and by what is in it."""
    folder = gin_files.folder()
    return (*extra, str(folder.parent), str(folder))


def _resolve(file: str, search_paths: Sequence[str]) -> str:
    """The file itself, or the one of this name on a search path."""
    places = [Path(file), *(Path(p) / file for p in _search_paths(tuple(search_paths)))]
    if Path(file).name == file and not file.endswith(".gin"):  # a recipe by its name
        places.append(gin_files.folder() / "recipes" / f"{file}.gin")
    for place in places:
        if place.is_file():
            try:
                text = place.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(
                    f"{place} cannot be read ({error}); expected a gin file in UTF-8"
                ) from error
            if len(text) > _LONGEST_FILE:
                raise UserError(f"{place} has over {_LONGEST_FILE:,} characters; cut it in files")
            return str(place)
    known = [
        str(p.relative_to(root))
        for root in map(Path, _search_paths(tuple(search_paths)))
        for p in root.glob("**/*.gin")
        if ".venv" not in p.parts
    ]
    by_name = {Path(k).name: k for k in known}
    raise UserError(
        f"gin file {file} does not exist; "
        + nearest(Path(file).name, by_name)
        + " (or add its folder with --gin_search_paths)"
    )


def _is_registered(selector: str) -> bool:
    try:
        gin.get_configurable(selector)
    except ValueError:
        return False
    return True


def _guarded(call: Any, label: str) -> Any:
    """Calls gin and turns its errors into one sentence."""
    try:
        return call()
    except UserError as error:
        # Gin adds the place, or the names of the classes that it was building.
        ours = str(error).split(_IN_CALL)[0].split(_IN_FILE)[0]
        raise UserError(ours + _place(str(error))) from error
    except Exception as error:
        sentence = _explain(error) or _of_values(error)
        if sentence is None:
            raise
        raise UserError(f"{label}: {sentence}") from error


def _explain(error: Exception) -> str | None:
    """An error of gin or of an import in a gin file as one sentence; None: not the user's."""
    message = str(error)
    place = _place(message)
    first = message.strip().split("\n")[0].rstrip(".")
    if match := re.search(r"No configurable matching '([^']+)'", message):
        return f"unknown name {match[1]!r}{place}; {nearest(match[1], _known_names())}"
    if match := re.search(
        r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'", message
    ):
        return (
            f"{match[1]} has no parameter {match[2]!r}{place}; "
            f"{nearest(match[2], _parameters(match[1]))}"
        )
    if match := re.search(
        r"Couldn't resolve selector (\S+); <module '([^']+)'.*no attribute (\w+)", message
    ):
        return f"unknown name {match[1]!r}{place}; {nearest(match[3], _public_names(match[2]))}"
    if match := re.search(r"Couldn't resolve selector (\S+);", message):
        return f"unknown name {match[1]!r}{place}; check its spelling"
    if match := re.search(r"'([^']+)' was not provided by an import statement", message):
        return f"{match[1]!r} is not imported{place}; add `import` or `from … import {match[1]}`"
    if isinstance(error, ModuleNotFoundError):
        return f"{first}{place}; check the import's spelling or install the package"
    if isinstance(error, ImportError):
        return f"{first}{place}"
    if match := re.search(
        r"missing 1 required positional argument: 'value'.*scope '([^']+)'", message, re.S
    ):
        return _NO_VALUE.format(match[1])
    if isinstance(error, SyntaxError) or type(error).__name__ == "TokenError":
        return f"not valid gin: {first}{place}"
    if "Unable to open file" in message:
        return f"{first}{place}; give a path that exists or add its folder to --gin_search_paths"
    if isinstance(error, TypeError) and "required" in message and "argument" in message:
        return f"{first}{place}"
    if isinstance(error, ValueError) and (
        "In bindings string" in message or "ambiguous" in message.lower()
    ):
        return f"{first}{place}"
    return None


def _of_values(error: Exception) -> str | None:
    """An error while gin was building something: with other values it would not have occurred."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply, or refer to themselves"
    why, *built = str(error).split(_IN_CALL)
    if not built:
        return None
    name = built[0].split("'")[1]
    bound = {
        f"{name}.{parameter} = {_short(repr(value))}": None
        for (_, selector), values in gin.config._CONFIG.items()
        if selector.rsplit(".", 1)[-1] == name
        for parameter, value in values.items()
    }
    reason = _short(why.strip().split("\n")[0])
    listed = f"; it is given {', '.join(bound)}" if bound else ""
    return f"{name} cannot be made ({type(error).__name__}: {reason}){listed}; change these values"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _place(message: str) -> str:
    """File and line, where gin names them."""
    if match := re.search(r'In file "([^"]+)", line (\d+)', message):
        return f" ({match[1]}:{match[2]})"
    if match := re.search(r"\(line (\d+)\)", message):
        return f" (line {match[1]})"
    return ""


def _known_names() -> list[str]:
    return [key.rsplit(".", 1)[-1] for key in gin.config._REGISTRY._selector_map]


def _parameters(selector: str) -> list[str]:
    cls = gin.config._REGISTRY.get_match(selector).wrapped
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls) if f.init]
    return list(getattr(getattr(cls, "__init__", cls), "__annotations__", ()))


def _public_names(module: str) -> list[str]:
    import sys

    return [n for n in vars(sys.modules.get(module, object())) if not n.startswith("_")]
