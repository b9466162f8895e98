"""The formats of files, listed in tables by their names.

A new format is one new file in `readers` with a table of it: DOCUMENT_FORMATS, QUERY_FORMATS,
TRAINING_FORMATS, or PAGE_FORMATS for kinds of files that the format `folder` reads. What else a
reader needs, such as a library, it imports when it reads.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qac_jax import extras
from qac_jax.errors import UserError, nearest
from qac_jax.formats.files import open_bytes, plain_name


if TYPE_CHECKING:
    from qac_jax.formats.documents import DocumentFormat
    from qac_jax.formats.queries import QueryFormat
    from qac_jax.formats.readers.folder import PageFormat
    from qac_jax.formats.training import TrainingFormat

F = TypeVar("F")


class Registry(Generic[F]):
    """The formats of one kind: what modules of `formats` and `readers` list in a table."""

    def __init__(self, table: str, what: str):
        self._table, self._what = table, what

    @functools.cached_property
    def formats(self) -> dict[str, F]:
        found: dict[str, F] = {}
        for name in (__package__, f"{__package__}.readers"):
            for module in extras.modules(name):
                found |= getattr(module, self._table, {})
        return dict(sorted(found.items()))

    def names(self) -> tuple[str, ...]:
        return tuple(self.formats)

    def get(self, name: str) -> F:
        if name not in self.formats:
            raise UserError(f"unknown {self._what} {name!r}; {nearest(name, self.names())}")
        return self.formats[name]

    def named(self, text: str | os.PathLike[str]) -> tuple[str, str] | None:
        """(format, name) of a data set by its name; None for files, which come first."""
        scheme, colon, name = os.fspath(text).partition(":")
        if not colon or not name or scheme not in self.names() or os.path.exists(text):
            return None
        return (scheme, name) if getattr(self.get(scheme), "by_name", False) else None

    def detect(self, sample: Sample) -> str | None:
        """The format that is surest that the sample is its own; None where none is."""
        formats: dict[str, Any] = self.formats
        sure = {name: format.recognise(sample) for name, format in formats.items()}
        best = max(sure, key=lambda name: sure[name])
        return best if sure[best] else None


DOCUMENTS: Registry[DocumentFormat] = Registry("DOCUMENT_FORMATS", "format")
QUERIES: Registry[QueryFormat] = Registry("QUERY_FORMATS", "query format")
PAGES: Registry[PageFormat] = Registry("PAGE_FORMATS", "kind of file")
TRAINING: Registry[TrainingFormat] = Registry("TRAINING_FORMATS", "format of training lines")


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
        """The first line's JSON object; empty where it is damaged, None where it is none."""
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
        head = stream.read(1 << 16).decode(errors="replace").removeprefix("\ufeff").lstrip()
    return Sample(os.fspath(path) or file, file, head)


def never(sample: Sample) -> int:
    """For formats that only their name selects."""
    return NO
