"""What a format is recognised by: the name and the beginning of a file."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qac_jax.formats.files import open_bytes, plain_name


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
