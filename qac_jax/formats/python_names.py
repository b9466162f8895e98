"""Definitions in Python source with their docstrings and public names, by `ast` alone.

A name is public when it can be reached through modules without a leading underscore: defined
there, listed in `__all__`, or re-exported by a package's `__init__`, however many re-exports,
star imports and aliases lie in between.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


# An item of __all__ is a name, all names of another module, or everything (`dir()`).
_ALL_OF = "*"
_EVERYTHING = "*dir()"


@dataclass(slots=True)
class Member:
    """A documented function or class; a class holds its methods."""

    kind: str
    doc: str = ""
    home: str = ""  # the module that a set_module decorator names
    methods: dict[str, Member] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """One source file."""

    name: str
    is_package: bool = False
    doc: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    exported: list[str] | None = None
    reexported: set[str] = field(default_factory=set)  # `import a as a`: meant to be seen
    # (module, name, method, docstring) of calls of add_newdoc, for what is compiled.
    added_docs: list[tuple[str, str, str, str]] = field(default_factory=list)


def parse(source: bytes, name: str, is_package: bool) -> Module:
    """Reads one file. Raises SyntaxError or ValueError for what is not Python."""
    tree = ast.parse(source)
    module = Module(name, is_package, ast.get_docstring(tree) or "")
    for statement in _statements(tree.body):
        _note(module, statement)
    return module


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import, both branches of every `if` and `try`."""
    for node in body:
        match node:
            case ast.If() | ast.For() | ast.While():
                yield from _statements([*node.body, *node.orelse])
            case ast.With():
                yield from _statements(node.body)
            case ast.Try():
                yield from _statements([*node.body, *node.orelse, *node.finalbody])
                for handler in node.handlers:
                    yield from _statements(handler.body)
            case _:
                yield node


def _note(module: Module, node: ast.stmt) -> None:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            _add(module.members, node)
        case ast.Import():
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                module.imports.setdefault(alias.asname or name, (name, None))
        case ast.ImportFrom():
            source = node.module or ""
            if node.level:
                parts = module.name.split(".")
                parts = parts[: len(parts) - node.level + module.is_package]
                source = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(source)
                    continue
                module.imports[alias.asname or alias.name] = (source, alias.name)
                if alias.asname == alias.name:
                    module.reexported.add(alias.name)
        case ast.Assign():
            for target in node.targets:
                _assign(module, target, node.value)
        case ast.AnnAssign(value=ast.expr() as value):
            _assign(module, node.target, value)
        case ast.AugAssign(target=ast.Name(id="__all__")):
            module.exported = [*(module.exported or ()), *_names_in(node.value)]
        case ast.Expr(value=ast.Call() as call):
            called = _dotted(call.func)
            if called in ("__all__.extend", "__all__.append") and call.args:
                module.exported = [*(module.exported or ()), *_names_in(call.args[0])]
            elif called.split(".")[-1] in ("add_newdoc", "_add_newdoc") and len(call.args) >= 2:
                module.added_docs.extend(_added_docs(call.args))


def _add(members: dict[str, Member], node: ast.stmt) -> None:
    """Of several definitions (overloads, branches) the first documented one counts."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    member = Member(kind, ast.get_docstring(node) or "", _home(node.decorator_list))
    if kind == "class":
        for statement in _statements(node.body):
            if not isinstance(statement, ast.ClassDef):
                _add(member.methods, statement)
    known = members.get(node.name)
    if known is None or (member.doc and not known.doc):
        members[node.name] = member


def _home(decorators: Sequence[ast.expr]) -> str:
    for decorator in decorators:
        if isinstance(decorator, ast.Call):
            if _dotted(decorator.func).split(".")[-1] == "set_module" and decorator.args:
                return _text(decorator.args[0])
            for keyword in decorator.keywords:
                if keyword.arg == "module":
                    return _text(keyword.value)
    return ""


def _assign(module: Module, target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            _assign(module, one, other)
    if not isinstance(target, ast.Name):
        return
    if target.id == "__all__":
        module.exported = list(_names_in(value))
    elif dotted := _dotted(value):
        module.aliases.setdefault(target.id, dotted)
    elif isinstance(value, ast.Call) and (dotted := _dotted(value.func)):
        module.instances.setdefault(target.id, dotted)


def _names_in(value: ast.expr) -> Iterator[str]:
    """The items of an expression that makes a list of names, as far as the source shows them."""
    parts: Sequence[ast.expr] = ()
    match value:
        case ast.Constant(value=str() as name):
            yield name
        case ast.List() | ast.Tuple() | ast.Set():
            parts = value.elts
        case ast.BinOp():
            parts = [value.left, value.right]
        case ast.Attribute():  # module.__all__, or a list that a module made for it
            if owner := _dotted(value.value):
                yield _ALL_OF + owner
        case ast.Call() if _dotted(value.func) in ("list", "set", "sorted", "tuple"):
            parts = value.args
        case ast.ListComp() | ast.Call() | ast.GeneratorExp() | ast.Name():
            yield _EVERYTHING
    for part in parts:
        yield from _names_in(part)


def _added_docs(arguments: Sequence[ast.expr]) -> Iterator[tuple[str, str, str, str]]:
    """add_newdoc(place, name, doc), where doc may be (method, doc) pairs; or (name, doc)."""
    *where, given = arguments[:3]
    place, name = ("", *map(_text, where))[-2:]
    if not name.isidentifier():
        return  # another function of that name
    for pair in given.elts if isinstance(given, ast.List) else [given]:
        method = ""
        if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
            method, pair = _text(pair.elts[0]), pair.elts[1]
        # The docstring in an expression such as """…""".replace("x", "y").
        yield place, name, method, inspect.cleandoc(max(map(_text, ast.walk(pair)), key=len))


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _dotted(node: ast.expr) -> str:
    """a.b.c as written, or nothing for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class Definition(NamedTuple):
    """Where something is defined; an empty name stands for the module itself."""

    module: str
    name: str = ""


# From the best: where the author says it belongs, a package's own surface, the rest.
_SET_MODULE, _PACKAGE, _STAR, _MODULE = range(4)

_HIDDEN = re.compile(r"(^|\.)(_[^.]*|tests?|conftest|setup)(\.|$)")


def is_public(dotted: str) -> bool:
    return _HIDDEN.search(dotted) is None


class Names:
    """Name resolution over all modules of one distribution."""

    def __init__(self, modules: Mapping[str, Module]):
        self.modules = modules
        self._cache: dict[tuple[str, str], Definition | None] = {}

    def public_names(self) -> dict[Definition, list[str]]:
        """Every name of every definition that can be seen from outside, the best first."""
        # The smallest candidate of a definition is its title.
        named: dict[Definition, set[tuple[bool, bool, int, int, str]]] = defaultdict(set)

        def add(rank: int, module: str, definition: Definition, name: str) -> None:
            # scipy.stats.norm is an instance of norm_gen, and the name that people know.
            known = self.modules[definition.module].instances
            renamed = name != definition.name and name not in known
            # Within the standard library, sqlite3.Timestamp is not the name of datetime.datetime.
            tops = [one.partition(".")[0] for one in (module, definition.module)]
            foreign = rank in (_PACKAGE, _MODULE) and tops[0] != tops[1]
            full = f"{module}.{name}"
            named[definition].add((foreign, renamed, rank, module.count("."), full))

        for module in self.modules.values():
            for name, member in module.members.items():
                if member.home and is_public(f"{member.home}.{name}"):
                    add(_SET_MODULE, member.home, Definition(module.name, name), name)
            if not is_public(module.name):
                continue
            for name in self._surface(module):
                definition = self.resolve(module.name, name)
                if definition and definition.name:
                    own = name in module.members or name in module.imports or name in module.aliases
                    rank = (_PACKAGE if own else _STAR) if module.is_package else _MODULE
                    add(rank, module.name, definition, name)
                elif definition and name in (module.exported or ()) and name in module.imports:
                    # A module that is shown under another name (posixpath as os.path).
                    for below in self._surface(self.modules[definition.module]):
                        held = self.resolve(definition.module, below)
                        if held and held.name:
                            add(_STAR, f"{module.name}.{name}", held, below)
        return {d: list(dict.fromkeys(name for *_, name in sorted(named[d]))) for d in named}

    def resolve(self, module: str, name: str) -> Definition | None:
        """The definition behind a name in a module; None where it lies outside or is compiled."""
        key = (module, name)
        if key not in self._cache:
            self._cache[key] = None  # ends circular imports
            self._cache[key] = self._resolve(module, name)
        return self._cache[key]

    def _resolve(self, module_name: str, name: str) -> Definition | None:
        module = self.modules.get(module_name)
        if module is None:
            return None
        if name in module.members:
            return Definition(module_name, name)
        alias = module.aliases.get(name, name)
        if alias != name and (definition := self.resolve_dotted(module_name, alias)):
            return definition
        if made_by := self._class_of(module, name):
            return Definition(module_name, made_by)
        if name in module.imports:
            source, attribute = module.imports[name]
            if attribute is None:
                return self._module(source)
            return self.resolve(source, attribute) or self._module(f"{source}.{attribute}")
        for star in reversed(module.stars):
            if name in self._seen_by_star(star) and (definition := self.resolve(star, name)):
                return definition
        return self._module(f"{module_name}.{name}")

    def resolve_dotted(self, module: str, dotted: str) -> Definition | None:
        first, *rest = dotted.split(".")
        owner = self.modules.get(module)
        if owner is not None and len(rest) == 1 and (made_by := self._class_of(owner, first)):
            if rest[0] in owner.members[made_by].methods:
                return Definition(module, f"{made_by}.{rest[0]}")  # shuffle = _inst.shuffle
        definition = self.resolve(module, first)
        for name in rest:
            if definition is None or definition.name:
                return None  # an attribute of a class or function
            definition = self.resolve(definition.module, name)
        return definition

    def _class_of(self, module: Module, instance: str) -> str:
        """The class in this module that an object is the only instance of, or nothing."""
        name = module.instances.get(instance, "")
        member = module.members.get(name)
        is_class = member is not None and member.kind == "class"
        return name if is_class and list(module.instances.values()).count(name) == 1 else ""

    def _module(self, name: str) -> Definition | None:
        return Definition(name) if name in self.modules else None

    def _seen_by_star(self, name: str) -> set[str]:
        module = self.modules.get(name)
        return set(self._exported(module, frozenset())) if module else set()

    def _surface(self, module: Module) -> Iterator[str]:
        """The names that a module shows to its users."""
        if module.exported is not None:
            yield from dict.fromkeys(self._exported(module, frozenset()))
            return
        shown = set(module.members) | module.reexported | set(module.aliases)
        if module.is_package:
            shown |= {n for n, (_, attribute) in module.imports.items() if attribute is not None}
            shown = shown.union(*map(self._seen_by_star, module.stars))
        yield from sorted(name for name in shown if not name.startswith("_"))

    def _exported(self, module: Module, seen: frozenset[str]) -> Iterator[str]:
        """The names that `from module import *` gives."""
        if module.name in seen:
            return
        seen |= {module.name}
        for item in [_EVERYTHING] if module.exported is None else module.exported:
            if item == _EVERYTHING:
                for table in (module.members, module.aliases, module.instances, module.imports):
                    yield from (name for name in table if not name.startswith("_"))
                for star in module.stars:
                    if star in self.modules:
                        yield from self._exported(self.modules[star], seen)
            elif item.startswith(_ALL_OF):
                owner = self.resolve_dotted(module.name, item.removeprefix(_ALL_OF))
                if owner is not None and not owner.name:
                    yield from self._exported(self.modules[owner.module], seen)
            else:
                yield item
