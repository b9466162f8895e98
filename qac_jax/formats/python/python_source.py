"""What one Python source file defines, documents, imports and exports; read by `ast` alone."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


# An item of __all__ is a name, all names of another module, or everything (`dir()`).
ALL_OF = "*"
EVERYTHING = "*dir()"


@dataclass(slots=True)
class Member:
    """A documented function or class; a class holds its methods."""

    name: str
    kind: str
    doc: str = ""
    home: str = ""  # the module that a set_module decorator names
    methods: dict[str, Member] = field(default_factory=dict)


@dataclass(slots=True)
class AddedDoc:
    """A docstring that a call of add_newdoc gives to something compiled."""

    place: str
    name: str
    method: str
    doc: str


@dataclass(slots=True)
class Module:
    """One source file."""

    name: str
    is_package: bool
    doc: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    exported: list[str] | None = None
    reexported: set[str] = field(default_factory=set)  # `import a as a`: meant to be seen
    added_docs: list[AddedDoc] = field(default_factory=list)


def parse(source: bytes, name: str, is_package: bool) -> Module:
    """Reads one file. Raises SyntaxError or ValueError for what is not Python."""
    tree = ast.parse(source)
    module = Module(name, is_package, ast.get_docstring(tree) or "")
    _Reader(module).visit_all(tree.body)
    return module


class _Reader:
    """Walks the statements that run on import, both branches of every `if` and `try`."""

    def __init__(self, module: Module):
        self.module = module

    def visit_all(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                _add(self.module.members, _member(node))
            case ast.Import():
                self._import(node)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value)
            case ast.AnnAssign() if node.value is not None:
                self._assign(node.target, node.value)
            case ast.AugAssign(target=ast.Name(id="__all__")):
                self._export(node.value)
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.If() | ast.For() | ast.While():
                self.visit_all([*node.body, *node.orelse])
            case ast.With():
                self.visit_all(node.body)
            case ast.Try():
                self.visit_all([*node.body, *node.orelse, *node.finalbody])
                for handler in node.handlers:
                    self.visit_all(handler.body)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname:
                self.module.imports.setdefault(alias.asname, (alias.name, None))
            else:
                top = alias.name.split(".")[0]
                self.module.imports.setdefault(top, (top, None))

    def _import_from(self, node: ast.ImportFrom) -> None:
        source = self._absolute(node)
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(source)
                continue
            name = alias.asname or alias.name
            self.module.imports[name] = (source, alias.name)
            if alias.asname == alias.name:
                self.module.reexported.add(name)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.name.split(".")
        keep = len(parts) - node.level + (1 if self.module.is_package else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)
        if not isinstance(target, ast.Name):
            return
        name = target.id
        if name == "__all__":
            self.module.exported = None
            self._export(value)
        elif dotted := _dotted(value):
            self.module.aliases.setdefault(name, dotted)
        elif isinstance(value, ast.Call) and (dotted := _dotted(value.func)):
            self.module.instances.setdefault(name, dotted)
        else:
            self.module.constants.add(name)

    def _export(self, value: ast.expr) -> None:
        exported = self.module.exported
        if exported is None:
            exported = self.module.exported = []
        exported.extend(_names_in(value))

    def _call(self, call: ast.Call) -> None:
        called = _dotted(call.func)
        if called in ("__all__.extend", "__all__.append") and call.args:
            self._export(call.args[0])
        elif called.split(".")[-1] in ("add_newdoc", "_add_newdoc") and len(call.args) >= 2:
            self.module.added_docs.extend(_added_docs(call.args))


def _member(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Member:
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    member = Member(node.name, kind, ast.get_docstring(node) or "", _home(node.decorator_list))
    if isinstance(node, ast.ClassDef):
        for statement in _statements(node.body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                _add(member.methods, _member(statement))
    return member


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        else:
            yield statement


def _add(members: dict[str, Member], member: Member) -> None:
    """Of several definitions (overloads, branches) the first documented one counts."""
    known = members.get(member.name)
    if known is None or (member.doc and not known.doc):
        members[member.name] = member


def _home(decorators: Sequence[ast.expr]) -> str:
    for decorator in decorators:
        if not isinstance(decorator, ast.Call):
            continue
        name = _dotted(decorator.func).split(".")[-1]
        if name == "set_module" and decorator.args:
            return _text(decorator.args[0])
        for keyword in decorator.keywords:
            if keyword.arg == "module":
                return _text(keyword.value)
    return ""


def _names_in(value: ast.expr) -> Iterator[str]:
    """The items of an expression that makes a list of names, as far as the source shows them."""
    match value:
        case ast.Constant(value=str() as name):
            yield name
        case ast.List() | ast.Tuple() | ast.Set():
            for element in value.elts:
                yield from _names_in(element)
        case ast.Starred():
            yield from _names_in(value.value)
        case ast.BinOp():
            yield from _names_in(value.left)
            yield from _names_in(value.right)
        case ast.Attribute():  # module.__all__, or a list that a module made for it
            if owner := _dotted(value.value):
                yield ALL_OF + owner
        case ast.Call() if _dotted(value.func) in ("list", "set", "sorted", "tuple"):
            for argument in value.args:
                yield from _names_in(argument)
        case ast.ListComp() | ast.Call() | ast.GeneratorExp() | ast.Name():
            yield EVERYTHING


def _added_docs(arguments: Sequence[ast.expr]) -> Iterator[AddedDoc]:
    """add_newdoc(place, name, doc), where doc may be (method, doc) pairs; or (name, doc)."""
    *where, given = arguments[:3]
    place, name = ("", *map(_text, where))[-2:]
    if not name.isidentifier():
        return  # another function of that name
    pairs = given.elts if isinstance(given, ast.List) else [given]
    for pair in pairs:
        if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
            yield AddedDoc(place, name, _text(pair.elts[0]), _longest_text(pair.elts[1]))
        else:
            yield AddedDoc(place, name, "", _longest_text(pair))


def _longest_text(node: ast.expr) -> str:
    """The docstring in an expression such as \"\"\"…\"\"\".replace("x", "y")."""
    return inspect.cleandoc(max(map(_text, ast.walk(node)), key=len))


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _dotted(node: ast.expr) -> str:
    """a.b.c as written, or nothing for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
