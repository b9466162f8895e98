"""The formats of files. Each is a module in a folder of `readers`, loaded only when it is used.

    DOCUMENTS.names()              what --format may be
    DOCUMENTS.get("beir").read     what reads it
    QUERIES.detect(sample(file))   the format that a file looks like
    DOCUMENTS.named("tfds:squad")  the format and the name of a data set that is fetched by name

A new format is one new file there: its name is the format's, and it declares FORMAT. `pages` holds
the kinds of files that the format `folder` reads.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qac_jax.errors import UserError, nearest
from qac_jax.formats.files import open_bytes, plain_name


if TYPE_CHECKING:
    from qac_jax.formats.documents import DocumentFormat
    from qac_jax.formats.judgements import JudgementFormat
    from qac_jax.formats.pages import PageFormat
    from qac_jax.formats.queries import QueryFormat
    from qac_jax.formats.training import TrainingFormat


class _Recognisable(Protocol):
    @property
    def recognise(self) -> Recognise: ...


F = TypeVar("F")
R = TypeVar("R", bound=_Recognisable)


class Registry(Generic[F]):
    """The formats in one folder of `qac_jax/formats/readers`."""

    def __init__(self, folder: str, what: str):
        self._package, self._what = f"{__package__}.readers.{folder}", what

    def names(self) -> tuple[str, ...]:
        """By the names of their files: nothing is imported."""
        package = importlib.import_module(self._package)
        modules = (module.name for module in pkgutil.iter_modules(package.__path__))
        return tuple(sorted(name for name in modules if not name.startswith("_")))

    def get(self, name: str) -> F:
        if name not in (names := self.names()):
            raise UserError(f"unknown {self._what} {name!r}; {nearest(name, names)}")
        return importlib.import_module(f"{self._package}.{name}").FORMAT

    def named(self, text: str | os.PathLike[str]) -> tuple[str, str] | None:
        """(format, name) of a data set by its name; None for files, which come first."""
        scheme, colon, name = os.fspath(text).partition(":")
        if not colon or not name or scheme not in self.names() or os.path.exists(text):
            return None
        return (scheme, name) if getattr(self.get(scheme), "by_name", False) else None

    def all(self) -> dict[str, F]:
        return {name: self.get(name) for name in self.names()}

    def detect(self: Registry[R], sample: Sample) -> str | None:
        """The format that is surest that the sample is its own; None where none is."""
        sure = {name: format.recognise(sample) for name, format in self.all().items()}
        best = max(sure, key=lambda name: sure[name])
        return best if sure[best] else None


DOCUMENTS: Registry[DocumentFormat] = Registry("documents", "format")
QUERIES: Registry[QueryFormat] = Registry("queries", "query format")
JUDGEMENTS: Registry[JudgementFormat] = Registry("judgements", "format of judgements")
PAGES: Registry[PageFormat] = Registry("pages", "kind of file")
TRAINING: Registry[TrainingFormat] = Registry("training", "format of training lines")


_HEAD = 1 << 16

# How sure a format is that a file is its own; the surest wins.
NO, LIKELY, SURE = 0, 1, 2


@dataclass(frozen=True)
class Sample:
    """The beginning of a file of `path` (the file itself, or one of a folder)."""

    path: str
    file: str
    head: str

    @functools.cached_property
    def first(self) -> str:
        """The first line."""
        return self.head.split("\n", 1)[0].rstrip("\r")

    @functools.cached_property
    def columns(self) -> list[str]:
        """The first line's fields divided by tabs; none where it is JSON or XML."""
        return [] if self.head.startswith(("{", "[", "<")) else self.first.split("\t")

    @functools.cached_property
    def record(self) -> dict[str, Any] | None:
        """The first line's JSON object; empty where it is damaged, None where it is something
        else."""
        if not self.head.startswith("{"):
            return None
        try:
            return dict(json.loads(self.first))
        except (ValueError, TypeError, RecursionError):
            return {}

    def named(self, *suffixes: str) -> bool:
        return plain_name(self.file).endswith(suffixes)


Recognise = Callable[[Sample], int]


def sample(file: str, path: str | os.PathLike[str] = "") -> Sample:
    with open_bytes(file) as stream:
        head = stream.read(_HEAD).decode(errors="replace").removeprefix("\ufeff").lstrip()
    return Sample(os.fspath(path) or file, file, head)


def never(sample: Sample) -> int:
    """For formats that only their name selects."""
    return NO
