"""The docstrings of installed Python packages as documents, without importing anything.

Modules and classes are documents; what they define is their parts, under its public name. A
docstring that stands at several places counts once. Modules in a fixed fifth (by the hash of
their names) are marked `held_out`: nothing is trained on them, known-item tests come from there.
"""

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qac_jax.errors import UserError, nearest
from qac_jax.formats import docstrings
from qac_jax.formats.bad_lines import BadLines, Place
from qac_jax.formats.documents import Document, DocumentFormat, Section, Shard
from qac_jax.formats.files import Piece
from qac_jax.formats.python_names import Definition, Member, Module, Names, is_public, parse


STDLIB = "stdlib"
DEFAULT_PACKAGES = "numpy,scipy,jax,flax,optax,nltk,stdlib"

# Shorter docstrings ("See base class.") say nothing a passage could be about.
_MIN_WORDS = 5
_HELD_OUT_SHARE = 5

# What the format's options may be: some of the kinds, one of the others.
CHOICES = {
    "held_out": ("include", "exclude", "only"),
    "sections": ("all", "first"),
    "summary": ("keep", "drop"),
    "kinds": ("module", "class", "method", "function"),
}
# A docstring, the public name of what it documents, the kind, and further names.
_Part = tuple[str, str, str, list[str]]

_SKIPPED_FOLDERS = {
    *("__pycache__", "tests", "test", "testdata", "site-packages", "dist-packages", "node_modules"),
    *("idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "encodings"),
}


def share(path: str, count: int | None, options: Mapping[str, str]) -> list[tuple[Piece, ...]]:
    """One package is one piece: its public names depend on all of it."""
    for name, allowed in CHOICES.items():
        given = _parts(options[name]) if name == "kinds" else [options[name]]
        if not set(given) <= set(allowed):
            raise UserError(f"option {name}={options[name]!r}: expected one of {allowed}")
    packages = list(dict.fromkeys(_parts(path)))
    if not packages:
        raise UserError(f"no packages are named; expected a list such as {DEFAULT_PACKAGES}")
    for package in packages:
        _root(package)
    shards = min(count or len(packages), len(packages))
    bounds = [len(packages) * i // shards for i in range(shards + 1)]
    pieces = [Piece(name) for name in packages]
    return [tuple(pieces[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]


def read(shard: Shard, bad: BadLines) -> Iterator[Document]:
    """The documents of the packages of one shard, in the order of their names."""
    wanted = {"include": (False, True), "exclude": (False,), "only": (True,)}
    for piece in shard.pieces:
        for document in _Package(piece.file, bad, shard.options).documents():
            if document.meta["held_out"] in wanted[shard.options["held_out"]]:
                yield document


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def held_out(module: str) -> bool:
    """Whether a module belongs to the fifth that is kept for testing."""
    digest = hashlib.blake2b(module.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_SHARE == 0


def versions(packages: str) -> dict[str, str]:
    """The installed versions, for a stage's key: the same names may mean other texts tomorrow."""
    import importlib.metadata as metadata

    installed = {}
    for package in _parts(packages):
        try:
            installed[package] = metadata.version(package)
        except (metadata.PackageNotFoundError, ValueError):
            # Imported under another name than it is installed by (sklearn), or built in.
            owners = sorted(set(metadata.packages_distributions().get(package, ())))
            python = "python " + ".".join(map(str, sys.version_info[:3]))
            installed[package] = " ".join(f"{o} {metadata.version(o)}" for o in owners) or python
    return installed


class _Package:
    """One distribution: all its modules, and the documents made of them."""

    def __init__(self, name: str, bad: BadLines, options: Mapping[str, str]):
        self.name = name
        self.kinds = _parts(options["kinds"]) or CHOICES["kinds"]
        self.first_only = options["sections"] == "first"
        self.without_summary = options["summary"] == "drop"
        self.modules = _modules(name, bad)
        self.names = Names(self.modules)
        self.public = self.names.public_names()
        self.bad = bad
        self.seen: set[bytes] = set()

    def documents(self) -> Iterator[Document]:
        """A document of each module and each class."""
        for _, module in sorted(self.modules.items()):
            title = self._module_title(module)
            parts: list[_Part] = (
                [(module.doc, title, "module", [])] if is_public(module.name) else []
            )
            classes = []
            for name, member in sorted(module.members.items()):
                titles = self.public.get(Definition(module.name, name))
                if titles and member.kind == "class":
                    classes.append((name, member, titles))
                elif titles:
                    parts.append((member.doc, titles[0], member.kind, titles[1:]))
            yield from self._document(module, module.name, title, "module", parts)
            for name, member, titles in classes:
                parts = [(member.doc, titles[0], "class", titles[1:])]
                for method, its in sorted(member.methods.items()):
                    if method == "__init__" or not method.startswith("_"):
                        own = titles[0] if method == "__init__" else f"{titles[0]}.{method}"
                        definition = Definition(module.name, f"{name}.{method}")
                        known = [*self.public.get(definition, ()), own]
                        parts.append((its.doc, known[0], "method", known[1:]))
                yield from self._document(
                    module, f"{module.name}:{name}", titles[0], "class", parts
                )

    def _document(
        self, module: Module, key: str, title: str, kind: str, parts: Sequence[_Part]
    ) -> Iterator[Document]:
        found = [section for part in parts for section in self._sections(module, *part)]
        if found:
            sections = tuple(Section("", text) for text, _ in found)
            meta = {
                "package": self.name,
                "module": module.name,
                "kind": kind,
                "held_out": held_out(module.name),
                "parts": tuple(about for _, about in found),
            }
            yield Document(key, title, sections, source=self.name, meta=meta)

    def _sections(
        self, module: Module, doc: str, title: str, kind: str, aliases: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The sections of one docstring; each knows the name and summary of the whole."""
        if kind not in self.kinds or len(doc.split()) < _MIN_WORDS:
            return
        fingerprint = hashlib.blake2b(" ".join(doc.split()).encode(), digest_size=16).digest()
        if fingerprint in self.seen:
            self.bad.leave_out("docstrings that stand elsewhere too")
            return
        self.seen.add(fingerprint)
        parsed = docstrings.parse(doc)
        anchors = [[self._target(module, label), label] for label in parsed.see_also]
        about = {
            "title": title,
            "kind": kind,
            "aliases": list(aliases),
            "summary": parsed.summary,
            "anchors": anchors,
        }
        texts = list(parsed.sections[:1] if self.first_only else parsed.sections)
        if self.without_summary and parsed.summary:
            before, _, after = texts[0].partition(parsed.summary)
            texts[0] = f"{before.rstrip()} {after.lstrip()}".strip()
            if len(texts[0].split()) < _MIN_WORDS:
                del texts[0]
        for text in texts:
            yield text, {key: value for key, value in about.items() if value}

    def _target(self, module: Module, label: str) -> str:
        """The public name of what a "See Also" means, or the label as it is written."""
        for start in (module.name, self.name):
            target = self.names.resolve_dotted(start, label.removeprefix(f"{self.name}."))
            if target is not None and self.public.get(target):
                return self.public[target][0]
        return label

    def _module_title(self, module: Module) -> str:
        """The module's own name, or for a private one where most of its content is shown."""
        if is_public(module.name):
            return module.name
        homes = Counter(
            self.public[definition][0].rpartition(".")[0]
            for name in module.members
            if self.public.get(definition := Definition(module.name, name))
        )
        return min(homes, key=lambda home: (-homes[home], home), default="")


def _root(package: str) -> str:
    """The folder or file of a package, without importing it."""
    if package == STDLIB:
        return sysconfig.get_path("stdlib")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    folders = [*(spec.submodule_search_locations or ())] if spec else []
    if spec is None or not (folders or (spec.origin or "").endswith(".py")):
        like = nearest(package, {STDLIB, *DEFAULT_PACKAGES.split(",")})
        raise UserError(f"{package!r} is not installed; name top-level packages in Python ({like})")
    return folders[0] if folders else str(spec.origin)


def _modules(package: str, bad: BadLines) -> dict[str, Module]:
    root = _root(package)
    modules: dict[str, Module] = {}
    for path in sorted(_sources(root)):
        parts = (
            [] if path == root else os.path.splitext(os.path.relpath(path, root))[0].split(os.sep)
        )
        is_package = parts[-1:] == ["__init__"]
        parts = parts[:-1] if is_package else parts
        name = ".".join(parts if package == STDLIB else [package, *parts])
        with open(path, "rb") as file:
            source = file.read()
        try:
            modules[name] = parse(source, name, is_package)
        except (SyntaxError, ValueError) as error:
            if package != STDLIB:
                bad.add(f"not Python: {error}", Place(path, getattr(error, "lineno", None)))
    for module in list(modules.values()):
        for place, name, method, doc in module.added_docs:
            place = place or module.name.rpartition(".")[0]
            home = modules.setdefault(place, Module(place))
            member = home.members.setdefault(name, Member("function"))
            if method:
                member.kind = "class"
                member = member.methods.setdefault(method, Member("function"))
            member.doc = member.doc or doc
    return modules


def _sources(root: str) -> Iterator[str]:
    if os.path.isfile(root):
        yield root
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and f.isidentifier())
        yield from (os.path.join(folder, f) for f in files if f.endswith(".py"))


DOCUMENT_FORMATS = {
    "python_docs": DocumentFormat(
        share,
        read,
        options={"held_out": "include", "kinds": "", "sections": "all", "summary": "keep"},
    )
}
