"""A grid into a bundle: what needs no trained model is done here, and the rest is packed.

Which stages travel follows from the grid: the trainings that not all cells share, and all that
depends on them. What they read is packed in a form that little software reads: examples as plain
files, BM25's rankings of the training questions instead of its index. Runs that need no travelling
model, such as BM25's, are judged here.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, nearest
from qac_jax.evaluation import beir
from qac_jax.evidence import converting, settings
from qac_jax.evidence.layout import SCHEME, Bundle, PackedCell
from qac_jax.formats.files import find
from qac_jax.formats.judgements import judgements_file
from qac_jax.pipeline import inputs, recipe
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.grid import Cell, Grid
from qac_jax.pipeline.inputs import STAGE
from qac_jax.pipeline.stage import Stage
from qac_jax.stages.embed import Embed
from qac_jax.stages.evaluate import Evaluate
from qac_jax.stages.evaluate_beir import EvaluateBeir
from qac_jax.stages.index import Index
from qac_jax.stages.mine import Mine
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize
from qac_jax.stages.train import Train
from qac_jax.text import tokenizers


# What runs on a machine with little but JAX.
PORTABLE = (Train, Tokenize, Embed, Index, Search, Mine, Evaluate, EvaluateBeir)


def travelling(cells: Sequence[Cell]) -> dict[str, Stage]:
    """Place -> each stage that is left to the other machine."""
    in_all = set.intersection(*(set(cell.places.values()) for cell in cells))
    shared = in_all if len(cells) > 1 else set()
    left: dict[str, Stage] = {}
    for cell in cells:
        for name, stage in cell.stages.items():
            place = cell.places[name]
            trained = isinstance(stage, Train) and place not in shared
            before = {cell.places[other] for other in inputs.references(stage).values()}
            if not trained and not before & left.keys():
                continue
            if not isinstance(stage, PORTABLE):
                raise UserError(
                    f"stage {name} of {cell.name} ({stage.verb}) needs a model that is trained in "
                    "the bundle, and runs only where everything is installed; run this grid with "
                    "`qac run`"
                )
            left[place] = stage
    if not left:
        raise UserError("no cell of the grid trains anything of its own; run it with `qac run`")
    return left


class Bundler:
    """Does the stages that stay, and fills a folder with what the others need."""

    def __init__(self, grid: Grid, cells: Sequence[Cell], made: Path, packed: Path):
        self.grid, self.cells = grid, cells
        self.made = epath.Path(made)  # a grid's folder: its finished stages are taken over
        self.packed = packed
        self.left = travelling(cells)
        self._stages: dict[str, Any] = {}

    def bundle(self) -> Bundle:
        self._make()
        cells = tuple(self._packed(cell) for cell in self.cells)
        facts = {
            "table": self._table(),
            "cells": [dataclasses.asdict(cell) for cell in cells],
            "stages": self._stages,
            "files": sorted(_hashes(self.packed)),
        }
        return Bundle(fields.digest(facts), self._table(), cells, self._stages)

    def _make(self) -> None:
        """Every stage that stays, as a grid makes it."""
        done: set[str] = set()
        for cell in self.cells:
            folders = self._folders(cell)
            for name, stage in cell.stages.items():
                place = cell.places[name]
                if place in self.left or place in done:
                    continue
                progress.say(f"{cell.name}: {name}")
                located = recipe.located(stage, folders, cell.data_dir)
                stage_lib.execute(located, folders[name], replace=True)
                done.add(place)

    def _folders(self, cell: Cell) -> dict[str, epath.Path]:
        return {name: self.made / place for name, place in cell.places.items()}

    def _table(self) -> dict[str, Any]:
        chosen = ("title", "rows", "baselines", "measures", "permutations", "partial", "heatmap")
        return {name: settings.to_json(getattr(self.grid, name)) for name in chosen}

    def _packed(self, cell: Cell) -> PackedCell:
        judged = []
        for name, stage in cell.stages.items():
            place = cell.places[name]
            if place in self.left and place not in self._stages:
                self._stages[place] = settings.to_json(self._changed(cell, stage))
        for name in self.grid.metrics.split(","):
            stage = cell.stages[name]
            if not isinstance(stage, Evaluate | EvaluateBeir):
                raise UserError(
                    f"stage {name} is of `qac {stage.verb}`, and a bundle judges by `qac evaluate` "
                    "and `qac evaluate-beir` alone; run this grid with `qac run`"
                )
            judged += self._judged(cell, name, stage)
        metrics = [cell.places[name] for name in self.grid.metrics.split(",")]
        return PackedCell(
            cell.system,
            cell.seed,
            dict(cell.places),
            tuple(place for place in metrics if place in self.left),
            tuple(judged),
        )

    def _judged(self, cell: Cell, name: str, stage: Evaluate | EvaluateBeir) -> list[str]:
        """The metrics of the runs that are here already."""
        place = cell.places[name]
        if place not in self.left:
            self._copy(place)
            return [place]
        if isinstance(stage, EvaluateBeir):
            return []
        here, _ = self._runs(cell, stage)
        if not here:
            return []
        folders = self._folders(cell)
        alone = recipe.located(
            dataclasses.replace(stage, runs=",".join(here)), folders, cell.data_dir
        )
        names = [cell.places[part.removeprefix(STAGE)] for part in here]
        target = f"judged/{fields.digest([names, fields.describe(alone.rules), alone.qrels])[:12]}"
        stage_lib.execute(alone, self.made / target, replace=True)
        self._copy(target)
        return [target]

    def _runs(self, cell: Cell, stage: Evaluate) -> tuple[list[str], list[str]]:
        """The runs that are judged here, and those that are judged there."""
        here: list[str] = []
        there: list[str] = []
        for part in inputs.split(stage, "runs"):
            name = part.removeprefix(STAGE)
            if name not in cell.places:
                raise UserError(
                    f"{stage.verb}.runs = {part!r}; {nearest(name, cell.places)} (a bundle judges "
                    "runs of stages)"
                )
            (there if cell.places[name] in self.left else here).append(part)
        return here, there

    def _changed(self, cell: Cell, stage: Stage) -> Stage:
        """The stage as the other machine runs it: inputs in the bundle, no further packages."""
        changes: dict[str, Any] = {}
        for name in inputs.set_inputs(stage):
            parts = inputs.split(stage, name)
            if isinstance(stage, Evaluate) and name == "runs":
                _, parts = self._runs(cell, stage)
            changes[name] = ",".join(self._input(cell, stage, name, part) for part in parts)
        if isinstance(stage, Train):
            changes["reading"] = dataclasses.replace(stage.reading, feed="plain", workers=0)
            changes["monitoring"] = dataclasses.replace(stage.monitoring, keep=1)
        if isinstance(stage, Tokenize):
            changes["pool"] = dataclasses.replace(stage.pool, workers=1)
        if isinstance(stage, EvaluateBeir):
            changes["keep_runs"] = False  # a slice carries metrics
        if isinstance(stage, Index) and stage.method == "auto":
            changes["method"] = "exact"
        return dataclasses.replace(stage, **changes)

    def _input(self, cell: Cell, stage: Stage, name: str, part: str) -> str:
        """Packs an input; returns what the stage has in its place."""
        if not part.startswith(STAGE):
            return SCHEME + self._file(cell, stage, name, part)
        other, _, file = part.removeprefix(STAGE).partition("/")
        place = cell.places[other]
        if place in self.left:
            return SCHEME + "/".join(filter(None, (place, file)))
        if file:
            target = self.packed / place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(os.fspath(self.made / place / file), target)
            return f"{SCHEME}{place}/{file}"
        if isinstance(stage, Mine) and name == "bm25":
            return SCHEME + self._rankings(cell, stage, place)
        self._copy(place)
        return SCHEME + place

    def _rankings(self, cell: Cell, stage: Mine, place: str) -> str:
        alone = dataclasses.replace(stage, negatives="bm25", index="", encoder="")
        located = recipe.located(alone, self._folders(cell), cell.data_dir)
        asked = [located.queries, located.qrels, located.contexts, fields.describe(stage.mining)]
        target = f"rankings/{fields.digest([place, *asked])[:12]}"
        if not (self.packed / target).exists():
            converting.rankings(located, self.packed / target)
        return target

    def _copy(self, place: str) -> None:
        """A finished artefact, its examples in plain files."""
        if (self.packed / place).exists():
            return
        artifact = artifacts.load(self.made / place)
        if artifact.kind == "examples":
            converting.examples(artifact, self.packed / place)
        else:
            _copy_artifact(artifact, self.packed / place)

    def _file(self, cell: Cell, stage: Stage, name: str, part: str) -> str:
        """A file or folder from elsewhere: of the data folder, shipped, of the Hub."""
        placed = inputs.place(part, f"{stage.verb}.{name}", {}, cell.data_dir)
        only: dict[str, Any] = {other: "" for other in inputs.set_inputs(stage)} | {name: placed}
        found = getattr(inputs.resolved(dataclasses.replace(stage, **only)), name)
        source = Path(os.path.abspath(found))
        if not source.exists() and inputs.TOKENIZER in _kinds(stage, name):
            source = tokenizers.ASSETS / part  # a vocabulary that ships
        if not source.exists():
            raise UserError(
                f"{stage.verb}.{name} = {part!r} cannot be packed, since {source} does not exist; "
                "give a file or folder that is here"
            )
        identity = inputs.identity(os.fspath(source))
        target = f"inputs/{fields.digest(identity)[:12]}/{source.name}"
        if not (self.packed / target).exists():
            (self.packed / target).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(stage, EvaluateBeir) and name == "beir":
                _copy_collections(source, stage.split, self.packed / target)
            elif source.is_dir():
                shutil.copytree(source, self.packed / target)
            else:
                shutil.copyfile(source, self.packed / target)
        return target


def _kinds(stage: Stage, name: str) -> Sequence[str]:
    return inputs.declared(stage)[name].metadata["kinds"]


def _copy_artifact(artifact: Artifact, target: Path) -> None:
    for name in (*artifact.files, artifacts.COMMIT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(os.fspath(artifact.path / name), target / name)


def _copy_collections(folder: Path, split: str, target: Path) -> None:
    """Of all that is in a folder of collections, what is searched, asked and judged."""
    for collection in beir.collections(folder, split):
        below = target / os.path.relpath(collection.path, folder)
        (below / "qrels").mkdir(parents=True)
        for name in ("corpus.jsonl", "queries.jsonl"):
            if found := find(collection.path, name):
                shutil.copy(found, below)
        shutil.copy(judgements_file(collection.path, collection.split), below / "qrels")


def _hashes(root: Path) -> Iterator[tuple[str, str]]:
    """The content of what is packed: identities of artefacts, hashes of other files."""
    for folder, below, names in os.walk(root):
        if artifacts.COMMIT in names:
            below.clear()
            yield os.path.relpath(folder, root), artifacts.load(folder).identity
            continue
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, root), inputs.identity(path)


def describe(bundle: Bundle, places: Mapping[str, Stage]) -> str:
    """What will run, in one sentence."""
    trained = sum(isinstance(stage, Train) for stage in places.values())
    return (
        f"{len(bundle.cells)} cells, {len(places)} stages left to run, {trained} of them trainings"
    )
