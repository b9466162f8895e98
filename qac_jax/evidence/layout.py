"""A bundle and what stands in it.

A bundle is one file, a tar archive: `bundle.json`, the code of the package (`code/`), and finished
artefacts and files that the stages read (`stages/`, `inputs/`, `rankings/`, `judged/`). Unpacked it
is a folder in which the remaining stages write `stages/KEY/NAME`, as a grid does. An input of a
stage is the path in that folder behind `bundle:`.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError


SCHEME = "bundle:"
DESCRIPTION, CODE = "bundle.json", "code"
FORMAT = "qac_jax evidence 1"

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PackedCell:
    """A cell: places of its stages by name, of its metrics, and of metrics that are known."""

    system: str
    seed: int
    stages: Mapping[str, str]
    metrics: tuple[str, ...]
    judged: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.system}/seed_{self.seed}"


@dataclasses.dataclass(frozen=True)
class Bundle:
    """What a bundle says of itself: the table's form, its cells, and the stages that are to run."""

    identity: str
    table: Json
    cells: tuple[PackedCell, ...]
    stages: Mapping[str, Json]  # place -> the stage as JSON

    def inputs(self, place: str) -> list[str]:
        """The places of the stages whose results a stage reads."""
        stage = self.stages[place]
        found = []
        for value in stage["fields"].values():
            for part in value.split(",") if isinstance(value, str) else ():
                name = part.strip().removeprefix(SCHEME)
                if part.strip().startswith(SCHEME):
                    found += [other for other in _prefixes(name) if other in self.stages]
        return found

    def written(self) -> Json:
        return {
            "format": FORMAT,
            "identity": self.identity,
            "table": self.table,
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
            "stages": dict(self.stages),
        }


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def read(root: Path) -> Bundle:
    """The description in an unpacked bundle."""
    try:
        return parsed((root / DESCRIPTION).read_text(encoding="utf-8"), root)
    except FileNotFoundError:
        raise UserError(f"{root} holds no {DESCRIPTION}; unpack the bundle again") from None


def parsed(text: str, where: Any) -> Bundle:
    try:
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise UserError(
                f"{where} is of the form {record['format']!r} and this code reads {FORMAT!r}; "
                "bundle again with this version"
            )
        cells = [
            PackedCell(
                **{**cell, "metrics": tuple(cell["metrics"]), "judged": tuple(cell["judged"])}
            )
            for cell in record["cells"]
        ]
        return Bundle(record["identity"], record["table"], tuple(cells), record["stages"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where} is not a bundle of `launch/evidence.sh bundle` ({error!r}); make it again"
        ) from error


def unpack(archive: Path, root: Path) -> Bundle:
    """Unpacks a bundle into a folder, unless it is there already."""
    description = described(archive)
    if (root / DESCRIPTION).is_file() and read(root).identity == description.identity:
        return description
    if root.exists() and any(root.iterdir()):
        raise UserError(
            f"{root} holds another bundle, or something else; give another --work, or empty it"
        )
    with _opened(archive) as tar:
        extract(tar, root)
    return description


def extract(tar: tarfile.TarFile, root: Path) -> None:
    """The archive's files and folders; UserError for links and for what is not below `root`.

    As tarfile's filter "data", which Python has since 3.11.4.
    """
    inside = root.resolve()
    for member in tar:
        target = (inside / member.name).resolve()
        if not (member.isreg() or member.isdir()) or not target.is_relative_to(inside):
            raise UserError(
                f"{member.name!r} is not a file in the archive's folder; take only bundles and "
                "slices of launch/evidence.sh"
            )
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with tar.extractfile(member) as packed, target.open("wb") as file:  # type: ignore[union-attr]
            shutil.copyfileobj(packed, file)


def described(archive: Path) -> Bundle:
    """The description in a bundle's file."""
    with _opened(archive) as tar:
        first = tar.next()
        file = tar.extractfile(first) if first and first.name == DESCRIPTION else None
        if file is None:
            raise UserError(f"{archive} is not a bundle of `launch/evidence.sh bundle`; give one")
        return parsed(file.read().decode(), archive)


def _opened(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive)
    except FileNotFoundError:
        raise UserError(
            f"{archive} does not exist; make it with `launch/evidence.sh bundle`"
        ) from None
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{archive} cannot be read ({error}); copy or make it again") from error


def finished(root: Path, place: str) -> Artifact | None:
    """The finished artefact of a stage, if it is there."""
    folder = root / place
    return artifacts.load(folder) if (folder / artifacts.COMMIT).is_file() else None
