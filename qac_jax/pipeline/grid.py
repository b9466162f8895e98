"""Grids: one recipe, several systems and seeds, and a table that compares them.

A cell is the recipe with a system's overlays and one seed. Equal stages of different cells run
once: a stage is written to `stages/KEY/NAME` of the output folder, where KEY is a hash of its
settings and of those of all stages that it depends on; a cell's folder holds links to its stages.
So a grid is resumed stage by stage, and a new system runs only the stages that differ. Cells run
one after the other in one process; compiled programs are dropped between cells if they are large.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from qac_jax import artifacts, fields, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import Busy, Interrupted, UserError, nearest, shown
from qac_jax.pipeline import inputs, readiness, recipe
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.inputs import STAGE
from qac_jax.pipeline.recipe import Recipe
from qac_jax.pipeline.stage import Stage


if TYPE_CHECKING:
    from qac_jax.report.grids import Layout


STAGES, CELL, SUMMARY, HEATMAP = "stages", "cell.json", "summary", "heatmap.svg"
_KEY = 12  # hexadecimal digits
_POLL = 5.0  # seconds between two looks at a stage that another job writes
_SPARE = 4 << 30  # resident bytes above which compiled programs are dropped

# (gin files, bindings, seed) -> the recipe that they describe.
Build = Callable[[Sequence[str], Sequence[str], int], Recipe]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Systems are overlays of one recipe: gin files (`….gin`) and bindings (`NAME = VALUE`).

    A system's parts may be lists themselves, so that macros of the grid's file stand for several.
    crossed: more systems, products of factors; `[{"topic": […]}, {"": […], "half": […]}]` are the
    systems topic and topic_half, each with the parts of both factors. only: these of all systems.
    metrics is the recipe's stage of kind "metrics" (or several, joined by commas, whose runs differ
    in name); `rows` and `baselines` map its runs to names in the table: runs of every system, and
    runs of none. partial: a system need not have every row (each is judged on its own collection).
    The first measure is tested. heatmap: rows are collections, and a picture shows nDCG@10 of
    systems by them.
    """

    recipe: str = ""
    systems: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    crossed: Sequence[Sequence[Mapping[str, Sequence[Any]]]] = ()
    only: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    metrics: str = "metrics"
    partial: bool = False
    rows: Mapping[str, str] = dataclasses.field(default_factory=dict)
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] = ("mrr@10",)
    permutations: int = 10_000
    title: str = ""
    heatmap: bool = False


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


def systems(grid: Grid) -> dict[str, list[str]]:
    """Every system of the grid and its overlays, those of `crossed` after those of `systems`."""
    products = [
        ("_".join(filter(None, names)), [f[name] for name, f in zip(names, factors, strict=True)])
        for factors in grid.crossed
        for names in itertools.product(*factors)
    ]
    overlays: dict[str, list[str]] = {}
    for name, parts in (*grid.systems.items(), *products):
        if not name or name.startswith(".") or "/" in name or name == STAGES:
            raise UserError(f"{name!r} cannot be the name of a system's folder; change it")
        if name in overlays:
            raise UserError(f"the grid has two systems {name!r}; give one of them another name")
        overlays[name] = list(_flat(parts, name))
    for name in grid.only:
        if name not in overlays:
            raise UserError(f"the grid has no system {name!r}; {nearest(name, overlays)}")
    return {name: overlays[name] for name in overlays if not grid.only or name in grid.only}


def _flat(parts: Any, system: str) -> Iterator[str]:
    if isinstance(parts, str):
        if not parts.endswith(".gin") and "=" not in parts:
            raise UserError(
                f"{shown(parts)} of the system {system} is neither a gin file nor a binding; "
                "write 'FILE.gin' or 'NAME = VALUE'"
            )
        yield parts
    elif isinstance(parts, Sequence):
        for part in parts:
            yield from _flat(part, system)
    else:
        raise UserError(
            f"the system {system} has the part {shown(parts)}; expected strings and lists"
        )


def cells(grid: Grid, build: Build) -> list[Cell]:
    """All cells, seed by seed, so that an early stop leaves whole comparisons."""
    for name, value in (
        ("recipe", grid.recipe),
        ("systems", grid.systems or grid.crossed),
        ("rows", grid.rows),
    ):
        if not value:
            raise UserError(f"the grid has no {name}; bind grid.Grid.{name}")
    all_cells = []
    overlays_of = systems(grid)
    for seed in grid.seeds:
        for system, overlays in overlays_of.items():
            files = [part for part in overlays if part.endswith(".gin")]
            bindings = [part for part in overlays if not part.endswith(".gin")]
            built = build([grid.recipe, *files], bindings, seed)
            stages = recipe.ordered(built)
            for name in grid.metrics.split(","):
                if name not in stages:
                    raise UserError(
                        f"{grid.recipe} has no stage {name!r} with the figures of a cell; "
                        f"{nearest(name, stages)}"
                    )
            if (judged := _judged(stages, grid.metrics)) is not None:
                _check_rows(grid, judged, f"{system}/seed_{seed}")
            all_cells.append(Cell(system, seed, stages, _places(stages), built.data_dir))
    return all_cells


def run(
    grid: Grid, todo: Sequence[Cell], out: epath.PathLike, *, command: str, documentation: str = ""
) -> dict[str, Any]:
    """Runs the unfinished stages; returns the summary, which is also written to the folder."""
    root = epath.Path(out)
    _refuse_foreign(root, grid)
    summary: dict[str, Any] = {}
    for number, finished in _run_cells(todo, root, command, documentation):
        _link(todo[number - 1], root)
        last = number == len(todo)
        summary = _summarized(grid, todo[:number], finished, tested=last)
        write_summary(root, grid, summary)
        _forget_compiled()
    return summary


def shared(todo: Sequence[Cell], share: str) -> Sequence[Cell]:
    """The cells of one job among several: "I/N" are those with the numbers I, I + N, …"""
    number, _, count = share.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UserError(
            f"share={share!r} is not a share of the cells; give I/N, such as 0/4 to 3/4 in four "
            "jobs"
        )
    return todo[int(number) :: int(count)]


def run_share(todo: Sequence[Cell], out: epath.PathLike, *, command: str) -> None:
    """Runs some cells beside other jobs, and waits for stages that these are writing."""
    for _ in _run_cells(todo, epath.Path(out), command, "", patient=True):
        _forget_compiled()
    progress.say(
        "this share of the grid is done; the same command without --share writes the table"
    )


def _run_cells(
    todo: Sequence[Cell],
    root: epath.Path,
    command: str,
    documentation: str,
    *,
    patient: bool = False,
) -> Iterator[tuple[int, dict[str, Artifact]]]:
    """Runs the unfinished stages cell by cell; yields how many cells are done, and all stages."""
    finished: dict[str, Artifact] = {}
    clock = _Clock(todo, root)
    for cell in todo:
        readiness.check(cell.stages, cell.stages, cell.data_dir)
        inputs.look_up(cell.stages)
    for number, cell in enumerate(todo, start=1):
        label = f"[cell {number}/{len(todo)}] {cell.name}"
        folders = {name: root / place for name, place in cell.places.items()}
        for name, declared in cell.stages.items():
            place = cell.places[name]
            if place in finished:
                continue
            progress.say(f"{label}: {name}{clock.left(finished)}")
            stage = recipe.located(declared, folders, cell.data_dir)
            try:
                finished[place] = _executed(stage, folders[name], documentation, patient)
            except UserError as error:
                raise UserError(
                    f"{cell.name}, stage {name} failed: {error} [what is finished is kept; "
                    f"continue with: {command}]"
                ) from error
            except Interrupted:
                progress.say(f"stopped in {cell.name}, stage {name}; continue with: {command}")
                raise
            clock.took(name, place, finished[place])
        yield number, finished


def _executed(stage: Stage, folder: epath.Path, documentation: str, patient: bool) -> Artifact:
    waited = False
    while True:
        try:
            return stage_lib.execute(stage, folder, replace=True, documentation=documentation)
        except Busy as busy:
            if not patient:
                raise
            if not waited:
                progress.say(f"waiting: {busy}")
            waited = True
            time.sleep(_POLL)


def plan(todo: Sequence[Cell], sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The plan of a dry run: the cells, the stages each adds, and the first cell in full."""
    seen: set[str] = set()
    rows = []
    for cell in todo:
        new = [name for name, place in cell.places.items() if place not in seen]
        seen |= set(cell.places.values())
        rows.append(
            {
                "cell": cell.name,
                "system": cell.system,
                "seed": cell.seed,
                "stages": len(cell.stages),
                "new": new,
                "places": dict(cell.places),
            }
        )
    first = Recipe(stages=todo[0].stages, data_dir=todo[0].data_dir)
    return {"cells": rows, "distinct_stages": len(seen), "first_cell": recipe.plan(first, sizes)}


def _places(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Name -> `stages/KEY/NAME`; equal for equal stages with equal inputs, whatever the cell."""
    places: dict[str, str] = {}
    for name, stage in stages.items():
        described = fields.describe(stage)
        for field in inputs.set_inputs(stage):
            described[field] = [_meant(part, places) for part in inputs.split(stage, field)]
        key = fields.digest({"fields": described, "version": stage.VERSION})[:_KEY]
        places[name] = f"{STAGES}/{key}/{name}"
    return places


def _meant(part: str, places: Mapping[str, str]) -> str:
    if not part.startswith(STAGE):
        return part
    name, _, file = part.removeprefix(STAGE).partition("/")
    return f"{places[name]}/{file}"


def _link(cell: Cell, root: epath.Path) -> None:
    """Writes the cell's folder: its description, and links to its stages."""
    folder = root / cell.system / f"seed_{cell.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"system": cell.system, "seed": cell.seed, "stages": dict(cell.places)}
    (folder / CELL).write_text(json.dumps(record, indent=1) + "\n")
    for name, place in cell.places.items():
        link = os.path.join(folder, name)
        target = os.path.join("..", "..", place)
        if os.path.islink(link) and os.readlink(link) != target:
            os.unlink(link)
        if not os.path.lexists(link):
            os.symlink(target, link)


def _summarized(
    grid: Grid, done: Sequence[Cell], finished: Mapping[str, Artifact], *, tested: bool
) -> dict[str, Any]:
    from qac_jax.evaluation import results
    from qac_jax.report import grids

    figures: dict[str, dict[int, dict[str, Any]]] = {}
    devices: dict[str, list[str]] = {}
    for cell in done:
        devices[cell.name] = _devices(finished[place] for place in cell.places.values())
        by_run = {
            result.name: result
            for name in grid.metrics.split(",")
            for result in results.read(finished[cell.places[name]])[0]
        }
        _check_rows(grid, by_run, cell.name)
        figures.setdefault(cell.system, {})[cell.seed] = by_run
    summary = grids.summarize(figures, layout(grid), tested=tested)
    return {**summary, "devices": devices}


def _check_rows(grid: Grid, judged: Iterable[str], cell: str) -> None:
    """Raises where a row of the table has no figure of a cell, which judged these runs."""
    judged = set(judged)
    absent = [run for run in grid.rows if run not in judged]
    if absent and (not grid.partial or len(absent) == len(grid.rows)):
        partial = "" if grid.partial else ", or set grid.Grid.partial where systems have fewer rows"
        raise UserError(
            f"stage {grid.metrics} of {cell} judges no run {absent[0]!r}, a row of the grid; "
            f"{nearest(absent[0], judged)}{partial}"
        )


def _judged(stages: Mapping[str, Stage], metrics: str) -> list[str] | None:
    """The runs that stages of metrics will judge; None where that is seen only when they do."""
    parts: list[str] = []
    for name in metrics.split(","):
        if not hasattr(stages[name], "runs"):
            return None  # evaluate-beir: whatever collections a folder holds
        parts += inputs.split(stages[name], "runs")
    if not all(part.startswith(STAGE) for part in parts):
        return None
    return [part.removeprefix(STAGE).partition("/")[0] for part in parts]


def _devices(stages: Iterable[Artifact]) -> list[str]:
    """The kinds of devices that models were trained on."""
    known = (stage.info.get("device") for stage in stages)
    return list(dict.fromkeys(device for device in known if device))


def layout(grid: Grid) -> Layout:
    """How its summary is laid out."""
    from qac_jax.report.grids import Layout

    return Layout(grid.rows, grid.baselines, grid.measures, grid.permutations)


def write_summary(root: epath.Path, grid: Grid, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, summary.md and, where the grid wants it, the heat map."""
    from qac_jax.report import grids

    texts = {
        f"{SUMMARY}.json": json.dumps({"title": grid.title, **summary}, indent=1) + "\n",
        f"{SUMMARY}.md": grids.markdown(summary, grid.title),
    }
    if grid.heatmap:
        texts[HEATMAP] = grids.heatmap(summary).plot().file()
    for name, text in texts.items():
        part = root / f".{name}.part"
        part.write_text(text)
        part.replace(root / name)


def _refuse_foreign(root: epath.Path, grid: Grid) -> None:
    if not root.exists():
        return
    if not root.is_dir():
        raise UserError(f"{root} is a file; give a folder to write to")
    known = {STAGES, f"{SUMMARY}.json", f"{SUMMARY}.md", *systems(grid)}
    names = [path.name for path in root.iterdir() if not path.name.startswith(".")]
    if names and not known & set(names):
        raise UserError(
            f"{root} is not empty and not a folder of this grid (it holds {names[0]}); "
            "choose another --out or empty it"
        )


def _forget_compiled() -> None:
    """Drops compiled programs if they take much memory; otherwise later cells reuse them."""
    jax = sys.modules.get("jax")
    if jax is not None and _resident_bytes() > _SPARE:
        jax.clear_caches()
        gc.collect()


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: never known to be small
        return _SPARE + 1


class _Clock:
    """Estimates the remaining time from finished stages of the same name."""

    def __init__(self, todo: Sequence[Cell], root: epath.Path):
        self._all = {place: name for cell in todo for name, place in cell.places.items()}
        self._seconds: dict[str, list[float]] = {}
        # What an earlier run finished takes no time any more, but tells how long its like takes.
        self._before: set[str] = set()
        for place, name in self._all.items():
            record = artifacts.peek(root / place)
            if record is not None and record["finished"]:
                self._before.add(place)
                self._note(name, record)

    def took(self, name: str, place: str, artifact: Artifact) -> None:
        if place not in self._before:
            self._note(name, {"info": artifact.info})

    def _note(self, name: str, record: Mapping[str, Any]) -> None:
        info = record.get("info")
        seconds = info.get("seconds") if isinstance(info, dict) else None
        if isinstance(seconds, int | float):  # a damaged record only costs the estimate
            self._seconds.setdefault(name, []).append(float(seconds))

    def left(self, finished: Mapping[str, artifacts.Artifact]) -> str:
        here = f" (stage {len(finished) + 1} of {len(self._all)}"
        done = self._before.union(finished)
        left = [name for place, name in self._all.items() if place not in done]
        known = [sum(self._seconds[n]) / len(self._seconds[n]) for n in left if n in self._seconds]
        if len(known) * 2 < len(left):
            return f"{here})"
        rest = sum(known) / len(known) * len(left) if known else 0.0
        return f"{here}, about {progress.human_seconds(rest)} left)"
