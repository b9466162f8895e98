"""Gin: files, bindings and flags build the stages and call the recipes; nothing else reads gin.

Gin's own parser reads the text; its bindings are kept in layers and applied here, so that a file
can make nothing but settings: dataclasses of this package, functions marked with `fields.for_gin`,
recipes, and what the packages of `--gin_modules` hold.

Order of precedence: flag, then `--gin.NAME=VALUE`, then file; then what a
recipe gives a stage; then the files that the recipe names for it.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import tokenize
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from qac_jax import extras, fields, recipes
from qac_jax.errors import UserError, nearest, shown
from qac_jax.pipeline.recipe import Run


VARIABLE = "QAC_GIN_MODULES"
# Where MODULE.CLASS is looked for if a file does not import MODULE: the rooms of this package.
_ROOMS = (
    *("stages", "objectives", "models", "training", "inference", "queries", "retrieval"),
    *("evaluation", "pipeline", "data", "text", "models.decoding", "bench", "exporting"),
)
_FLAG = "--gin."


@dataclasses.dataclass(frozen=True)
class _Macro:
    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class _Reference:
    """`@scope/module.Name` or, called, `@scope/module.Name()`."""

    scope: str
    selector: str
    called: bool
    target: Any = None

    def __repr__(self) -> str:
        return f"@{_scoped(self.scope, self.selector)}{'()' if self.called else ''}"


class _Delegate(config_parser.ParserDelegate):
    """Keeps macros and references as they are written."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> _Reference:
        scope, _, selector = scoped_configurable_name.rpartition("/")
        return _Reference(scope, selector, evaluate)

    macro = staticmethod(_Macro)


@dataclasses.dataclass(frozen=True, eq=False)
class _Binding:
    """A parameter of a class or function in a scope; a macro has only a name."""

    scope: str
    target: Any  # None: a macro
    name: str
    value: Any
    label: str = ""  # the overlay or flag that set it; "": another file, which need not be used

    def __str__(self) -> str:
        owner = f"{_spelling(self.target)}." if self.target else ""
        return _scoped(self.scope, f"{owner}{self.name}")


class _Layer(dict[tuple[Any, str], list[_Binding]]):
    """Bindings by what they bind, later ones first."""

    def add(self, binding: _Binding) -> None:
        self.setdefault((binding.target, binding.name), []).insert(0, binding)


class Config:
    """The settings of a command line: builds stages and recipes, and notes what these use."""

    def __init__(
        self,
        recipe: str = "",  # a gin file that names one, or a recipe of ours by its name
        *,
        files: Sequence[str] = (),
        overlays: Sequence[str] = (),  # read after the files; their settings must be used
        values: Mapping[str, Any] = {},  # noqa: B006  # of parameters, macros and settings by name
        bindings: Sequence[str] = (),  # `--gin.…`
        flags: Mapping[str, Any] = {},  # noqa: B006
        search_paths: Sequence[str] = (),
        modules: Sequence[str] = (),  # packages beside ours that the files may name
    ):
        allowed = [*modules, *os.environ.get(VARIABLE, "").split(",")]
        self._allowed = tuple(p.strip() for text in allowed for p in text.split(",") if p.strip())
        folder = extras.gin_folder()
        self._paths = [*map(Path, search_paths), folder.parent, folder]
        self._files: dict[str, _Layer] = {}
        self._used: set[_Binding] = set()
        self._given = _Layer()
        if recipe and not self._find(recipe) and recipe in recipes.functions():
            reference = _Reference("", recipe, True, recipes.functions()[recipe])
            self._given.add(_Binding("", None, "recipe", reference))
        elif recipe:
            self._read(recipe, self._given)
        for file in files:
            self._read(file, self._given)
        self._shipped = {file for file in overlays if self._read(file, self._given, file)}
        for name, value in values.items():
            self._given.add(self._key(name, value))
        for binding in bindings:
            label = f"{_FLAG}{binding.partition('=')[0].strip()}"
            self._parse(quoted(binding), self._given, label)
        for name, value in flags.items():
            self._given.add(self._key(name, value))

    # Reading.

    def _read(self, file: str, into: _Layer, label: str = "", above: Sequence[Path] = ()) -> bool:
        """Reads a file and those that it includes; returns whether it ships with the package."""
        path = self._find(file)
        if path is None:
            known = [p.name for path in self._paths for p in path.glob("**/*.gin")]
            near = nearest(Path(file).name, known)
            raise UserError(
                f"gin file {file} does not exist; {near} (or add its folder: --gin_search_paths)"
            )
        if path in above:
            raise UserError(f"the gin file {file} includes itself; leave one of the includes out")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}); expected gin in UTF-8") from error
        self._parse(text, into, label, (*above, path))
        return extras.ships(str(path))

    def _parse(self, text: str, into: _Layer, label: str, files: Sequence[Path] = ()) -> None:
        """Adds the bindings of a text; `files` are the one that it is from and those above it."""
        imports: dict[str, str] = {}

        def found_part(part: Any) -> Any:
            if isinstance(part, _Reference):
                return dataclasses.replace(part, target=self._target(part.selector, imports))
            return part

        def at(line: object) -> str:
            return f" ({files[-1]}:{line})" if files else f" ({label})"

        place = ""
        try:
            for statement in config_parser.ConfigParser(text, _Delegate()):
                place = at(statement.location.line_num)
                if isinstance(statement, config_parser.ImportStatement):
                    module = statement.module
                    if not module.startswith("__gin__."):
                        self._module(module)
                        name = module.rsplit(".", 1)[-1] if statement.is_from else module
                        imports[statement.alias or name] = module
                elif isinstance(statement, config_parser.IncludeStatement):
                    own = extras.ships(str(files[-1])) if files else False
                    self._read(statement.filename, into, label if own else "", files)
                elif isinstance(statement, config_parser.BindingStatement):
                    scope, selector, name, value, _ = statement
                    target = self._target(selector, imports) if name else None
                    if target and name not in _parameters(target):
                        near = nearest(name, _parameters(target))
                        raise UserError(f"{selector} has no parameter {name!r}; {near}")
                    value = _mapped(value, found_part)
                    scope, name = (scope, name) if name else ("", selector)
                    into.add(_Binding(scope, target, name, value, label))
        except UserError as error:
            raise UserError(str(error) if "(" in str(error) else f"{error}{place}") from error
        except (SyntaxError, ValueError, tokenize.TokenError, RecursionError) as error:
            found = error.args[1] if len(error.args) > 1 else ("?",)
            line = getattr(found, "line_num", None) or found[0]
            raise UserError(f"not valid gin: {error.args[0]}{at(line)}") from error

    def _find(self, file: str) -> Path | None:
        places = [Path(file), *(path / file for path in self._paths)]
        if Path(file).name == file and not file.endswith(".gin"):  # a recipe by its name
            places.append(extras.gin_folder() / "recipes" / f"{file}.gin")
        return next((place for place in places if place.is_file()), None)

    # What text may name.

    def _module(self, name: str) -> Any:
        """Imports a module that gin may name; refuses another one before it is imported."""
        package = name.split(".")[0]
        try:
            if not _within(name, ("qac_jax", *self._allowed)):
                raise UserError(f"the module {name!r} is not imported: {_advice(package)}")
            return importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{error}; check the import's spelling or install it") from error

    def _target(self, selector: str, imports: Mapping[str, str]) -> Any:
        """The class, function or recipe that MODULE.NAME means, which must be for settings."""
        module, _, name = selector.rpartition(".")
        if module in ("", "qac"):
            if name not in recipes.functions():
                near = nearest(name, recipes.functions())
                raise UserError(f"{name!r} is not a recipe; {near}; a class is MODULE.{name}")
            return recipes.functions()[name]
        names = [imports[module]] if module in imports else []
        names += [module] if _within(module, ("qac_jax", *self._allowed)) else []
        names += [] if module in imports else [f"qac_jax.{room}.{module}" for room in _ROOMS]
        found = [self._module(each) for each in names if module in imports or _exists(each)]
        for target in (vars(each)[name] for each in found if name in vars(each)):
            self._refuse(selector, target)
            return target
        near = nearest(name, [n for each in found for n in vars(each) if not n.startswith("_")])
        raise UserError(f"unknown name {selector!r}; {near if found else 'check its spelling'}")

    def _refuse(self, selector: str, target: Any) -> None:
        """Raises for what is neither settings of ours nor of a package that the user allows."""
        home = str(getattr(target, "__module__", None) or type(target).__module__)
        if not _within(home, ("qac_jax",)):
            if not _within(home, self._allowed) or not callable(target):
                raise UserError(f"{selector!r} is refused: {_advice(home.split('.')[0])}")
            return
        settings = isinstance(target, type) and dataclasses.is_dataclass(target)
        if not settings and getattr(target, "__for_gin__", False) is not True:
            raise UserError(
                f"{selector!r} is refused: it is a {type(target).__name__}, and gin may name "
                "classes of settings only"
            )

    def _key(self, key: str, value: Any) -> _Binding:
        """The binding of a name such as QUERIES or encoder/train.Schedule.steps."""
        scope, _, rest = key.rpartition("/")
        selector, _, name = rest.rpartition(".")
        target = self._target(selector, {}) if selector else None
        return _Binding(scope, target, name if selector else name.upper(), value)

    # Making.

    def build(self, cls: type, *, check: bool = True) -> Any:
        """The instance that the bindings describe, with its fields checked."""
        built = self._make(cls, [""], [self._given])
        if check:
            fields.check(built)
        return built

    def is_grid(self) -> bool:
        return "run" not in _parameters(self.named())

    def recipe(self) -> Any:
        """The graph that the named recipe makes, or the grid."""
        function = self.named()
        values, macros = {}, _Layer()
        parameters = {n: p for n, p in recipes.parameters(function).items() if n != "run"}
        for name, parameter in parameters.items():
            macros.add(_Binding("", None, name.upper(), parameter.default))
        for name, parameter in parameters.items():
            keys = ((function, name), (None, name.upper()))
            bound = [binding for key in keys for binding in self._given.get(key, ())]
            self._used.update(bound)
            label, value = f"{function.__name__}.{name}", parameter.default
            if bound:
                value = self._value(bound[0].value, [""], [macros, self._given])
            if value is parameter.empty:
                raise UserError(f"{label} is not set; pass --{name} VALUE or bind it in gin")
            fields.check_value(value, parameter.annotation, label)
            values[name] = value
        if self.is_grid():
            return self._with_bound(function(**values))
        for name, value in values.items():
            macros.add(_Binding("", None, name.upper(), value))
        # A parameter is the recipe's alone: it is no macro of the files that stages are made with.
        rest = _Layer({k: b for k, b in self._given.items() if k[0] or k not in macros})

        def make(cls: type, name: str, files: Sequence[str], given: Mapping[str, Any]) -> Any:
            scopes = ["", function.__name__, name, f"{function.__name__}/{name}"]
            for file in files:
                if file not in self._files:
                    self._read(file, self._files.setdefault(file, _Layer()))
            of_recipe, leaves = _Layer(), fields.flat(cls)
            for key, value in given.items():
                own = _Binding("", leaves[key].owner, key, value) if key in leaves else None
                of_recipe.add(own or self._key(key, value))
            return self._make(
                cls, scopes, [macros, *(self._files[file] for file in files), of_recipe, rest]
            )

        run = Run(make)
        recipes.call(function, run, values)
        return run.recipe()

    def _with_bound(self, grid: Any) -> Any:
        kind: Any = type(grid)
        layers = [self._given]
        bound = {name: self._bound(kind, name, [""], layers) for name in _parameters(kind)}
        changes = {n: self._value(b.value, [""], layers) for n, b in bound.items() if b}
        return dataclasses.replace(grid, **changes)

    def named(self) -> Callable[..., Any]:
        named = self._given.get((None, "recipe"), [None])[0]
        if named is None or not isinstance(named.value, _Reference):
            raise UserError("the gin files name no recipe; write recipe = @qac.NAME()")
        return named.value.target

    def _make(self, target: Any, scopes: list[str], layers: list[_Layer]) -> Any:
        """Calls a class or function with what is bound for it; its parts are made likewise."""
        given = {}
        for name, part in _parameters(target).items():
            bound = self._bound(target, name, scopes, layers)
            if bound is not None:
                given[name] = self._value(bound.value, scopes, layers)
            elif part is not None:
                given[name] = self._make(part, scopes, layers)
        try:
            return target(**given)
        except (UserError, RecursionError):
            raise
        except Exception as error:
            listed = ", ".join(f"{name} = {shown(value)}" for name, value in given.items())
            raise UserError(
                f"{_spelling(target)} cannot be made of {listed} ({error!r})"
            ) from error

    def _bound(
        self, target: Any, name: str, scopes: list[str], layers: list[_Layer]
    ) -> _Binding | None:
        """The binding that counts: of the last layer, in its narrowest scope, the last one."""
        for layer in reversed(layers):
            bound = [b for b in layer.get((target, name), ()) if b.scope in scopes]
            self._used.update(bound)
            if bound:
                return max(bound, key=lambda binding: scopes.index(binding.scope))
        return None

    def _value(self, value: Any, scopes: list[str], layers: list[_Layer]) -> Any:
        """A value with its macros replaced and its references made."""

        def evaluate(part: Any) -> Any:
            if isinstance(part, _Macro):
                return self._value(self._macro(part.name, layers), scopes, layers)
            if isinstance(part, _Reference) and part.called:
                words = part.scope.split("/") if part.scope else []
                own = ["/".join(words[: n + 1]) for n in range(len(words))]
                return self._make(part.target, ["", *own] if own else scopes, layers)
            return part.target if isinstance(part, _Reference) else part

        try:
            return _mapped(value, evaluate)
        except RecursionError as error:
            raise UserError(f"{shown(value)} is nested too deeply, or refers to itself") from error

    def _macro(self, name: str, layers: list[_Layer]) -> Any:
        if name == "gin.REQUIRED":
            return fields.REQUIRED
        found = [b for layer in reversed(layers) for b in layer.get((None, name), ())]
        self._used.update(found)
        if not found or repr(found[0].value) == "%gin.REQUIRED":
            raise UserError(
                f"macro %{name} has no value; pass --gin.{name}=VALUE or write it in a file"
            )
        return found[0].value

    # After making.

    def unused(self) -> dict[str, str]:
        """Overlays and bindings that changed nothing in what was built, and why.

        What ships may say more than one recipe needs, so it must change something; of a user's own
        every setting must.
        """
        reasons, labelled = {}, dict[str, list[_Binding]]()
        for binding in itertools.chain.from_iterable(self._given.values()):
            labelled.setdefault(binding.label, []).append(binding)
        for label, bound in labelled.items():
            lacks = [binding for binding in bound if binding not in self._used]
            if label and lacks and (len(lacks) == len(bound) or label not in self._shipped):
                one = "" if label.startswith(_FLAG) else f": {lacks[0]}"
                reasons[label] = f"{label}{one} changes nothing: nothing uses {lacks[0]}"
        return reasons

    def text(self) -> str:
        """The bindings as gin text: documentation, never read back."""
        return "".join(f"{b} = {b.value!r}\n" for bound in self._given.values() for b in bound[:1])

    def parameters(self) -> list[str]:
        """Names that can be set: macros of the files, and the recipe's parameters in capitals."""
        names = {name for target, name in self._given if target is None and name != "recipe"}
        if (None, "recipe") in self._given:
            names |= {name.upper() for name in _parameters(self.named()) if name != "run"}
        return sorted(names)


def quoted(binding: str) -> str:
    """NAME=VALUE with quotes around a bare text, which shells take away from a user's quotes."""
    name, equals, value = (part.strip() for part in binding.partition("="))
    if not equals:
        raise UserError(f"--gin.{binding} has no value; write --gin.NAME=VALUE")
    if not value or value.startswith(("@", "%", "[", "{", "(", "'", '"')):  # gin's own forms
        return binding
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return f"{name}={value!r}"
    return binding


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with its parts changed, wherever they are in it."""
    if isinstance(value, Mapping):
        return {_mapped(k, change): _mapped(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    return change(value)


@functools.cache
def _parameters(target: Any) -> dict[str, type | None]:
    """The parameters of a class or function, and the classes of those that are parts of a stage."""
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        parts = fields.parts(target)
        return {f.name: parts.get(f.name) for f in dataclasses.fields(target) if f.init}
    named = inspect.signature(target).parameters
    return dict.fromkeys(recipes.parameters(target) if "run" in named else named)


def _scoped(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


def _spelling(target: Any) -> str:
    """MODULE.CLASS, as gin files call it."""
    home = target.__module__
    own = home.startswith(f"{recipes.__name__}.")
    return target.__qualname__ if own else f"{home.rsplit('.', 1)[-1]}.{target.__qualname__}"


@functools.cache
def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _advice(package: str) -> str:
    return (
        "gin files may name settings of qac_jax only; if you trust this file, allow the package "
        f"with --gin_modules {package}"
    )


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
