"""Grids: one recipe, several systems and seeds, and a table that compares them.

A cell is the recipe with a system's parameters and one seed. Equal stages of different cells run
once: a stage is written to `stages/KEY/NAME` of the output folder, where KEY is a hash of its
settings and of those of all stages that it depends on; a cell's folder holds links to its stages.
So a grid is resumed stage by stage, and a new system runs only the stages that differ. They run one
after the other in this process, or on a cluster (engines.py) at the same time.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import STAGES, Artifact
from qac_jax.errors import Interrupted, UserError, nearest
from qac_jax.pipeline import costs, engines, inputs, readiness, recipe
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.inputs import STAGE
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.stage import Stage


_SUMMARY, _TEXT, _HEATMAP = "summary.json", "summary.md", "heatmap.svg"
_KEY = 12  # hexadecimal digits

# Parameters of the recipe and other bindings by their names; "gin": overlays.
System = Mapping[str, Any]
Build = Callable[[System, int], Recipe]


@dataclasses.dataclass(frozen=True)
class Curve:
    """The grid's first row and measure against a number, as a picture: the names of its lines, and
    of each line the systems and their numbers, or "STAGE/RESULT/MEASURE", a figure of the system's
    own."""

    label: str
    lines: Mapping[str, Mapping[str, float | str]]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Systems are values of one recipe's parameters, such as {"queries": 10, "gin": ["FILE.gin"]}.

    only: these of all systems. metrics: the recipe's stage of kind "metrics" (or several, joined by
    commas, whose runs differ in name); `rows` and `baselines` map its runs to names in the table:
    runs of every system, and runs of none. The first measure is tested. heatmap: rows are
    collections, and a picture shows nDCG@10 of systems by them. curves: pictures, by their names.
    """

    recipe: str = ""
    systems: Mapping[str, System] = dataclasses.field(default_factory=dict)
    only: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    metrics: str = "metrics"
    rows: Mapping[str, str] = dataclasses.field(default_factory=dict)
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] = ("mrr@10",)
    permutations: int = 10_000
    title: str = ""
    heatmap: bool = False
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """What it writes beside the stages."""
        drawn = [f"{curve}.svg" for curve in self.curves]
        return [_SUMMARY, _TEXT, *[_HEATMAP] * self.heatmap, *drawn]

    def chosen(self) -> dict[str, System]:
        """The systems that are run."""
        for name in self.only:
            if name not in self.systems:
                raise UserError(f"the grid has no system {name!r}; {nearest(name, self.systems)}")
        for name in self.systems:
            if not name or name.startswith(".") or "/" in name or name == STAGES:
                raise UserError(f"{name!r} cannot be the name of a system's folder; change it")
        return {name: self.systems[name] for name in self.only or self.systems}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One system with one seed: its stages in order, and where each lies below the grid."""

    system: str
    seed: int
    stages: Mapping[str, Stage]
    places: Mapping[str, str]
    data_dir: str = ""

    @property
    def name(self) -> str:
        return f"{self.system}/seed_{self.seed}"


def cells(grid: Grid, build: Build) -> list[Cell]:
    """All cells, seed by seed, so that an early stop leaves whole comparisons."""
    for name in ("recipe", "systems", "rows"):
        if not getattr(grid, name):
            raise UserError(f"the grid has no {name}; bind grid.Grid.{name}")
    found = []
    for seed in grid.seeds:
        for system, parameters in grid.chosen().items():
            built = build(parameters, seed)
            stages = recipe.ordered(built)
            for name in grid.metrics.split(","):
                if name not in stages:
                    raise UserError(f"{grid.recipe} has no stage {name!r}; {nearest(name, stages)}")
            found.append(Cell(system, seed, stages, _places(stages), built.data_dir))
    return found


def run(grid: Grid, todo: Sequence[Cell], out: epath.PathLike, *, command: str) -> dict[str, Any]:
    """Runs the unfinished stages; returns the summary, which is also written to the folder."""
    root = epath.Path(out)
    below = {STAGES, *grid.chosen(), *(cell.name for cell in todo)}
    below |= {os.path.dirname(place) for cell in todo for place in cell.places.values()}
    published = dict.fromkeys(grid.files, STAGES)
    recipe.refuse_foreign(root, below, published, todo[0].data_dir if todo else "")
    first: dict[str, tuple[int, str]] = {}  # place -> the first cell with it, its name there
    jobs: list[engines.Job] = []
    for number, cell in enumerate(todo):
        judging = [cell.stages[name] for name in grid.metrics.split(",")]
        if all(hasattr(stage, "runs") for stage in judging):  # not what judges collections
            parts = (part for stage in judging for part in inputs.split(stage, "runs"))
            _check_rows(grid, cell, {part.removeprefix(STAGE) for part in parts})
        readiness.check(cell.stages, cell.data_dir)
        inputs.look_up(cell.stages)
        folders = {name: root / place for name, place in cell.places.items()}
        for name, declared in cell.stages.items():
            if (place := cell.places[name]) not in first:
                read = {cell.places[of] for of in inputs.references(declared).values()}
                before = [at for at, one in enumerate(first) if one in read]
                first[place] = number, name
                stage = inputs.located(declared, folders, cell.data_dir)
                jobs.append(engines.Job((stage, folders[name]), before))
    finished: dict[str, Artifact] = {}
    made, previous = engines.in_order(functools.partial(stage_lib.execute, replace=True), jobs), 0
    for place, (number, name) in first.items():
        cell = todo[number]
        if number != previous:
            _forget_compiled()
        previous, so_far = number, f"stage {len(finished) + 1} of {len(first)}"
        progress.say(f"[cell {number + 1}/{len(todo)}] {cell.name}: {name} ({so_far})")
        try:
            finished[place] = next(made)
        except UserError as error:
            raise UserError(
                f"{cell.name}, stage {name} failed: {error} [what is finished is kept; "
                f"continue with: {command}]"
            ) from error
        except Interrupted:
            progress.say(f"stopped in {cell.name}, stage {name}; continue with: {command}")
            raise
    for cell in todo:
        _link(cell, root)
    return _summarized(grid, todo, finished, root)


def plan(todo: Sequence[Cell], sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The plan of a dry run: the cells, the stages each adds, the first cell in full, and the costs
    of all stages together, each counted once."""
    seen: dict[str, Any] = {}
    rows, first = list[dict[str, Any]](), list[Any]()
    fitting = recipe.fitting(sizes or {}, *(cell.stages for cell in todo))
    for cell, given in zip(todo, fitting, strict=True):
        done = {name: seen[place] for name, place in cell.places.items() if place in seen}
        built = Recipe(stages=cell.stages, data_dir=cell.data_dir)
        plans = recipe.plan(built, given, done=done)
        first = first or plans
        new = {p["stage"]: p for p in plans if p["stage"] not in done}
        seen |= {cell.places[name]: plan for name, plan in new.items()}
        rows.append({"cell": cell.name, "new": [*new]})
    together = costs.totals([*seen.values()])
    return {"cells": rows, "distinct_stages": len(seen), "first_cell": first, "totals": together}


def _places(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Name -> `stages/KEY/NAME`; equal for equal stages with equal inputs, whatever the cell."""
    places: dict[str, str] = {}

    def meant(part: str) -> str:
        name, _, file = part.removeprefix(STAGE).partition("/")
        return f"{places[name]}/{file}" if part.startswith(STAGE) else part

    for name, stage in stages.items():
        described = fields.describe(stage)
        for field in inputs.set_inputs(stage):
            described[field] = [meant(part) for part in inputs.split(stage, field)]
        key = fields.digest({"fields": described, "version": stage.VERSION})[:_KEY]
        places[name] = f"{STAGES}/{key}/{name}"
    return places


def _link(cell: Cell, root: epath.Path) -> None:
    """Writes the cell's folder: links to its stages."""
    folder = root / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in cell.places.items():
        link, target = os.path.join(folder, name), os.path.join("..", "..", place)
        if os.path.islink(link) and os.readlink(link) != target:
            os.unlink(link)
        if not os.path.lexists(link):
            os.symlink(target, link)


def _summarized(
    grid: Grid, done: Sequence[Cell], finished: Mapping[str, Artifact], root: epath.Path
) -> dict[str, Any]:
    """The summary, written as summary.json, summary.md and, where the grid wants it, heat map."""
    from qac_jax.evaluation import results
    from qac_jax.report import grids

    figures: dict[str, dict[int, dict[str, Any]]] = {}
    seconds: dict[str, float] = {}
    for cell in done:
        took = sum(finished[place].info["seconds"] for place in {*cell.places.values()})
        seconds[cell.system] = seconds.get(cell.system, 0.0) + took / len(grid.seeds)
        made = [finished[cell.places[name]] for name in grid.metrics.split(",")]
        by_run = {result.name: result for one in made for result in results.read(one)[0]}
        _check_rows(grid, cell, by_run)
        figures.setdefault(cell.system, {})[cell.seed] = by_run
    summary = grids.summarize(
        figures, grid.rows, grid.baselines, measures=grid.measures, permutations=grid.permutations
    )
    summary = {"title": grid.title, **summary, "seconds": seconds}
    texts = {
        _SUMMARY: json.dumps(summary, indent=1) + "\n",
        _TEXT: grids.markdown(summary, grid.title),
    }
    if grid.heatmap:
        texts[_HEATMAP] = grids.heatmap(summary) or ""
    by_system = {cell.system: cell for cell in done}
    for name, curve in grid.curves.items():
        lines = {
            line: {s: _number(at, by_system[s], finished) for s, at in of.items() if s in by_system}
            for line, of in curve.lines.items()
        }
        texts[f"{name}.svg"] = grids.curves(summary, lines, curve.label) or ""
    for name, text in texts.items():
        artifacts.write_atomically(root / name, text)
    return summary


def _check_rows(grid: Grid, cell: Cell, judged: Collection[str]) -> None:
    """Refuses a row that is none of the runs that were judged, or will be."""
    for name in (*grid.rows, *grid.baselines):
        if name not in judged:
            raise UserError(
                f"stage {grid.metrics} of {cell.name} judges no run {name!r}, a row of the grid; "
                f"{nearest(name, judged)}"
            )


def _number(at: float | str, cell: Cell, finished: Mapping[str, Artifact]) -> float:
    """A place on a curve."""
    from qac_jax.evaluation import results

    if not isinstance(at, str):
        return at
    stage, name, measure = at.split("/")
    found = results.read(finished[cell.places[stage]])[0]
    return next(result.mean[measure] for result in found if result.name == name)


def _forget_compiled() -> None:
    """Drops the programs of a cell; those that other cells need are in JAX's cache on disk."""
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
