"""The public names of what a Python package defines, without importing it.

A name is public when it can be reached through modules without a leading underscore: defined
there, listed in `__all__`, or re-exported by a package's `__init__`, however many re-exports,
star imports and aliases lie in between.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from qac_jax.formats.python.python_source import ALL_OF, EVERYTHING, Module


class Definition(NamedTuple):
    """Where something is defined; an empty name stands for the module itself."""

    module: str
    name: str = ""


class _Candidate(NamedTuple):
    """A public name; the smallest candidate of a definition is its title."""

    foreign: bool
    renamed: bool
    rank: int
    depth: int
    name: str


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
        named: dict[Definition, set[_Candidate]] = defaultdict(set)
        for module in self.modules.values():
            for name, member in module.members.items():
                if member.home and is_public(f"{member.home}.{name}"):
                    own = Definition(module.name, name)
                    named[own].add(self._candidate(_SET_MODULE, member.home, own))
            if not is_public(module.name):
                continue
            for name in self._surface(module):
                definition = self.resolve(module.name, name)
                if definition is None:
                    continue
                if definition.name:
                    rank = _rank(module, name)
                    named[definition].add(self._candidate(rank, module.name, definition, name))
                elif name in (module.exported or ()) and name in module.imports:
                    for below, full in self._below(definition, f"{module.name}.{name}"):
                        named[below].add(full)
        return {d: _names(candidates) for d, candidates in named.items()}

    def _below(self, owner: Definition, shown_as: str) -> Iterator[tuple[Definition, _Candidate]]:
        """What a module holds that is shown under another name (posixpath as os.path)."""
        for name in self._surface(self.modules[owner.module]):
            definition = self.resolve(owner.module, name)
            if definition is not None and definition.name:
                yield definition, self._candidate(_STAR, shown_as, definition, name)

    def _candidate(
        self, rank: int, module: str, definition: Definition, name: str = ""
    ) -> _Candidate:
        name = name or definition.name
        # scipy.stats.norm is an instance of norm_gen, and the name that people know.
        own = name == definition.name or name in self.modules[definition.module].instances
        # Within the standard library, sqlite3.Timestamp is not the name of datetime.datetime.
        foreign = rank in (_PACKAGE, _MODULE) and not _same_top(module, definition.module)
        return _Candidate(foreign, not own, rank, module.count("."), f"{module}.{name}")

    def undocumented(self) -> list[str]:
        """Names in `__all__` of public modules behind which no Python source stands."""
        missing = set()
        for module in self.modules.values():
            if is_public(module.name) and module.exported and not _is_shim(module):
                for name in self._surface(module):
                    if self.resolve(module.name, name) is None:
                        missing.add(f"{module.name}.{name}")
        return sorted(missing, key=lambda name: (name.count("."), name))

    def resolve(self, module: str, name: str) -> Definition | None:
        """What a name in a module means; None for what lies outside or is compiled."""
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
        if module.aliases.get(name, name) != name:
            definition = self.resolve_dotted(module_name, module.aliases[name])
            if definition is not None:
                return definition
        if name in module.instances and (made_by := self._class_of(module, name)):
            return Definition(module_name, made_by)
        if name in module.imports:
            source, attribute = module.imports[name]
            if attribute is None:
                return self._module(source)
            definition = self.resolve(source, attribute)
            return definition or self._module(f"{source}.{attribute}")
        for star in reversed(module.stars):
            if star in self.modules and name in self._seen_by_star(star):
                definition = self.resolve(star, name)
                if definition is not None:
                    return definition
        if name in module.constants or name in module.aliases or name in module.instances:
            return Definition(module_name, name)
        return self._module(f"{module_name}.{name}")

    def resolve_dotted(self, module: str, dotted: str) -> Definition | None:
        first, *rest = dotted.split(".")
        owner = self.modules.get(module)
        if owner is not None and len(rest) == 1 and first in owner.instances:
            made_by = self._class_of(owner, first)
            if made_by and rest[0] in owner.members[made_by].methods:
                return Definition(module, f"{made_by}.{rest[0]}")  # shuffle = _inst.shuffle
        definition = self.resolve(module, first)
        for name in rest:
            if definition is None or definition.name:
                return None  # an attribute of a class or function
            definition = self.resolve(definition.module, name)
        return definition

    def _class_of(self, module: Module, instance: str) -> str:
        """The class in this module that an object is the only instance of, or nothing."""
        name = module.instances[instance]
        member = module.members.get(name)
        only = list(module.instances.values()).count(name) == 1
        return name if only and member is not None and member.kind == "class" else ""

    def _module(self, name: str) -> Definition | None:
        return Definition(name) if name in self.modules else None

    def _seen_by_star(self, name: str) -> set[str]:
        return set(self._exported(self.modules[name], frozenset()))

    def _surface(self, module: Module) -> Iterator[str]:
        """The names that a module shows to its users."""
        if module.exported is not None:
            yield from dict.fromkeys(self._exported(module, frozenset()))
            return
        shown = set(module.members) | module.reexported | set(module.aliases)
        if module.is_package:
            shown |= {n for n, (_, attribute) in module.imports.items() if attribute is not None}
            for star in module.stars:
                if star in self.modules:
                    shown |= self._seen_by_star(star)
        yield from sorted(name for name in shown if not name.startswith("_"))

    def _exported(self, module: Module, seen: frozenset[str]) -> Iterator[str]:
        """The names that `from module import *` gives."""
        if module.name in seen:
            return
        seen |= {module.name}
        for item in [EVERYTHING] if module.exported is None else module.exported:
            if item == EVERYTHING:
                yield from self._namespace(module, seen)
            elif item.startswith(ALL_OF):
                owner = self.resolve_dotted(module.name, item.removeprefix(ALL_OF))
                if owner is not None and not owner.name:
                    yield from self._exported(self.modules[owner.module], seen)
            else:
                yield item

    def _namespace(self, module: Module, seen: frozenset[str]) -> Iterator[str]:
        for table in (module.members, module.aliases, module.instances, module.imports):
            yield from (name for name in table if not name.startswith("_"))
        for star in module.stars:
            if star in self.modules:
                yield from self._exported(self.modules[star], seen)


def _rank(module: Module, name: str) -> int:
    if not module.is_package:
        return _MODULE
    explicit = name in module.members or name in module.imports or name in module.aliases
    return _PACKAGE if explicit else _STAR


def _same_top(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


def _names(candidates: set[_Candidate]) -> list[str]:
    return list(dict.fromkeys(candidate.name for candidate in sorted(candidates)))


def _is_shim(module: Module) -> bool:
    """A deprecated module that forwards every access: its names live elsewhere."""
    return "__getattr__" in module.members
