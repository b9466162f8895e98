"""Recipes: a gin file names stages and binds them; here they are ordered, skipped, run.

Every stage writes into a sub-folder of --out that bears its name. A stage whose folder holds a
finished artefact of the same key is skipped, an interrupted one is taken up again, and whatever
depends on something that changed is made again (DESIGN.md, "Recipe").
"""

from __future__ import annotations

import dataclasses
import graphlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import Interrupted, UserError, nearest
from qac_jax.hub import shipped
from qac_jax import fields
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.stage import REFERENCE, Stage


# "data:NAME" in a source field: below the folder that --data_dir names.
DATA = "data:"
# "shipped:NAME": a model or vocabulary that comes with the package.
SHIPPED = "shipped:"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Named stages; `stage:NAME` in an input field is the output of the stage NAME.

    In a source field, `stage:NAME/FILE` is a file of that output, `data:NAME` the file or folder
    NAME below `data_dir` (`data:` itself), and `shipped:NAME` what comes with the package.
    `parts` are further stages, in groups, as included files define them.
    """

    stages: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parts: Sequence[Mapping[str, Any]] = ()
    title: str = ""
    data_dir: str = ""


def choose(of: str = "", options: Mapping[str, Any] | None = None) -> Any:
    """One of several values by name, for gin files: what a recipe's budget means."""
    options = options or {}
    if of not in options:
        raise UserError(f"{of!r} is no choice here; {nearest(of, options)}")
    return options[of]


def ordered(recipe: Recipe) -> dict[str, Stage]:
    """The stages in an order in which each follows its inputs; refuses what cannot run."""
    declared: dict[str, Any] = {}
    for group in (recipe.stages, *recipe.parts):
        if twice := declared.keys() & group.keys():
            raise UserError(
                f"the recipe names the stage {min(twice)!r} twice; give one of them another name"
            )
        declared |= group
    if not declared:
        raise UserError("the recipe names no stages; bind Recipe.stages = {'NAME': @…Stage()}")
    for name, stage in declared.items():
        if not isinstance(stage, Stage):
            raise UserError(
                f"Recipe.stages[{name!r}] = {stage!r} is not a stage; "
                f"bind it to a stage such as @{name}/prepare.Prepare()"
            )
        fields.check(stage, name)
        for field, target in stage_lib.references(stage).items():
            if target not in declared:
                raise UserError(
                    f"{name}.{field} = '{REFERENCE}{target}', but the recipe has no stage "
                    f"{target!r}; {nearest(target, declared)}"
                )
    graph = {
        name: list(dict.fromkeys(stage_lib.references(stage).values()))
        for name, stage in declared.items()
    }
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise UserError(
            f"the stages {' -> '.join(error.args[1])} take their inputs from one another in a "
            f"circle; one of them needs another input"
        ) from error
    return {name: declared[name] for name in order}


def run(
    recipe: Recipe,
    out: epath.PathLike,
    *,
    start: str = "",
    only: str = "",
    documentation: str = "",
    command: str = "qac run …",
) -> dict[str, Artifact]:
    """Runs what is not done yet. `start`: redo from this stage on; `only`: this stage alone."""
    stages = ordered(recipe)
    root = epath.Path(out)
    for name in filter(None, (start, only)):
        if name not in stages:
            raise UserError(f"the recipe has no stage {name!r}; {nearest(name, stages)}")
    _refuse_foreign(root, stages)
    forced = _with_dependants(stages, start) if start else set()
    finished: dict[str, Artifact] = {}
    for number, (name, declared) in enumerate(stages.items(), start=1):
        if only and name != only:
            continue
        folders = {target: root / target for target in stages}
        stage, folder = located(declared, folders, recipe.data_dir), root / name
        if start and name not in forced:
            finished[name] = _expect_done(name, stage, folder, command)
            continue
        if name == start or name == only:
            artifacts.remove(folder)
        progress.say(f"[{number}/{len(stages)}] {name} ({stage.VERB})")
        try:
            finished[name] = stage_lib.execute(
                stage, folder, replace=True, documentation=documentation
            )
        except UserError as error:
            raise UserError(_failure(name, str(error), finished, command)) from error
        except Interrupted:
            progress.say(f"stopped in {name}; what is finished is kept; continue with: {command}")
            raise
        except Exception:
            progress.say(_failure(name, "see below", finished, command))
            raise
    return finished


def plan(recipe: Recipe) -> list[dict[str, Any]]:
    """What a dry run shows: per stage its settings and the sizes that can be said beforehand."""
    plans: dict[str, dict[str, Any]] = {}
    for name, stage in ordered(recipe).items():
        references = stage_lib.references(stage)
        inputs = {field: plans[target]["plan"] for field, target in references.items()}
        plans[name] = {"stage": name, "inputs": references, **plan_of(stage, inputs)}
    return list(plans.values())


def plan_of(stage: Stage, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One stage's settings, which of them are not the defaults, and what it would do."""
    described = fields.describe(stage)
    described.pop("type")
    defaults = {f.name: f.default for f in dataclasses.fields(stage)}
    return {
        "verb": stage.VERB,
        "kind": stage.KIND,
        "fields": described,
        "set": [name for name in described if getattr(stage, name) != defaults[name]],
        "plan": stage.plan(inputs),
    }


def located(stage: Stage, folders: Mapping[str, epath.Path], data_dir: str) -> Stage:
    """The stage with every `stage:`, `data:` and `shipped:` replaced by the place it means."""
    changes: dict[str, Any] = {}
    for role in ("artifact", "source"):
        for field in stage_lib.input_fields(stage, role):
            parts = stage_lib.parts_of(stage, field)
            label = f"{stage.VERB}.{field.name}"
            places = [_place(part, label, folders, data_dir) for part in parts]
            if places != parts:
                changes[field.name] = ",".join(places)
    for field in dataclasses.fields(stage):  # a tokenizer is a setting, and may lie there too
        value = getattr(stage, field.name)
        is_option = fields.role(field) == "option" and isinstance(value, str)
        if is_option and value.startswith((DATA, SHIPPED)):
            changes[field.name] = _place(value, f"{stage.VERB}.{field.name}", folders, data_dir)
    return dataclasses.replace(stage, **changes) if changes else stage


def _place(part: str, label: str, folders: Mapping[str, epath.Path], data_dir: str) -> str:
    """Where one input lies."""
    if part.startswith(REFERENCE):
        name, _, file = part.removeprefix(REFERENCE).partition("/")
        if name not in folders:
            raise UserError(f"{label} = {part!r} names a stage of a recipe; give a folder here")
        return os.path.join(folders[name], file) if file else os.fspath(folders[name])
    if part.startswith(SHIPPED):
        try:
            return shipped.folder(part.removeprefix(SHIPPED))
        except UserError as error:
            raise UserError(f"{label}: {error}") from None
    if not part.startswith(DATA):
        return part
    if not data_dir:
        raise UserError(
            f"{label} = {part!r} lies in the recipe's data folder; say where it is with "
            "--data_dir DIR"
        )
    return os.path.join(data_dir, part.removeprefix(DATA)) if part != DATA else data_dir


def _with_dependants(stages: Mapping[str, Stage], first: str) -> set[str]:
    chosen = {first}
    for name, stage in stages.items():  # in order, so one pass is enough
        if chosen & set(stage_lib.references(stage).values()):
            chosen.add(name)
    return chosen


def _expect_done(name: str, stage: Stage, folder: epath.Path, command: str) -> Artifact:
    done = stage_lib.is_done(stage, folder)
    if done is None:
        raise UserError(
            f"stage {name} is not finished with these settings, so later ones cannot start from "
            f"it; leave --from out ({command}), or name {name} in it"
        )
    return done


def _refuse_foreign(root: epath.Path, names: Collection[str]) -> None:
    """A recipe writes only into an empty folder or one in which its stages already are."""
    if not root.exists():
        return
    if not root.is_dir():
        raise UserError(f"{root} is a file; give a folder to write to")
    children = [p for p in root.iterdir() if not p.name.startswith(".")]
    ours = [p for p in children if p.name in names or artifacts.peek(p) is not None]
    if children and not ours:
        raise UserError(
            f"{root} is not empty and not a folder of this recipe (it holds {children[0].name}); "
            f"choose another --out or empty it"
        )


def _failure(name: str, why: str, finished: Collection[str], command: str) -> str:
    kept = (
        f"finished and kept: {', '.join(finished)}" if finished else "nothing was finished before"
    )
    return f"stage {name} failed: {why} [{kept}; continue with: {command}]"


def command_line(arguments: list[str]) -> str:
    """The command that continues a run: the same one."""
    return shlex.join(["qac", *arguments])
