"""Recipes: named stages, run in the order of their dependencies.

Every stage writes into a folder with its name: results into --out itself, the others below
`stages` in it. A stage whose folder holds a finished artefact of the same key is skipped, an
interrupted one is resumed, and stages whose inputs changed are run again.
"""

import contextlib
import dataclasses
import graphlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from etils import epath

from qac_jax import artifacts, fields, processes, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import Interrupted, UserError, nearest
from qac_jax.pipeline import costs, inputs, readiness
from qac_jax.pipeline.inputs import DATA, STAGE, TOKENIZER, Plan, Plans, Ref, located, place
from qac_jax.pipeline.stage import Stage, execute
from qac_jax.retrieval import corpus


# What one wants of a run, beside what no other stage reads.
RESULTS = ("best", "encoder", "index", "retriever", "retriever_2")
_DONE = ".finished.json"  # the key of a run whose other stages were removed


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Named stages; `stage:NAME` in an input field is the output of the stage NAME.

    Other forms of inputs are listed in `pipeline/inputs.py`. `published`: files of stages that are
    copied into --out itself, name -> `stage:NAME/FILE`.
    """

    stages: Mapping[str, Stage] = dataclasses.field(default_factory=dict)
    data_dir: str = ""
    published: Mapping[str, str] = dataclasses.field(default_factory=dict)


# (stage's class, its name, gin files, settings) -> the stage.
Make = Callable[[type[Stage], str, Sequence[str], Mapping[str, Any]], Stage]


class Run:
    """The first argument of a recipe: collects the stages that it adds, and runs none.

    `run(Embed, "vectors", passages=passages)` adds a stage with these settings, by their flat
    names, and returns the reference to its output. Gin's bindings in the scope of the stage's name
    win over these settings, and these over the gin files after the name. A list is several inputs;
    `bind` sets macros and parameters of other classes, as `--gin.NAME=VALUE` does.
    """

    data = DATA  # the data folder; f"{run.data}corpus" is in it

    def __init__(self, make: Make):
        self._make = make
        self._usual: list[tuple[tuple[type[Stage], ...], dict[str, Any]]] = []
        self.stages: dict[str, Stage] = {}
        self.published: dict[str, str] = {}

    def __call__(
        self,
        cls: type[Stage],
        name: str,
        /,
        *files: str,
        bind: Any = None,  # name -> value
        **settings: Any,
    ) -> Ref:
        if name in self.stages:
            raise UserError(
                f"the recipe names the stage {name!r} twice; give one of them another name"
            )
        given = {
            n: value
            for classes, usual in self._usual
            for n, value in usual.items()
            if n in fields.flat(cls) and (not classes or cls in classes)
        }
        given |= {**(bind or {}), **settings}
        given = {n: ",".join(v) if isinstance(v, list) else v for n, v in given.items()}
        self.stages[name] = self._make(cls, name, files, given)
        return f"{STAGE}{name}"

    def usual(self, *classes: type[Stage], **settings: Any) -> None:
        """Gives these settings to every further stage of these classes, or of all that have them,
        which is not given others."""
        self._usual.append((classes, settings))

    def recipe(self) -> Recipe:
        """The graph of what was added."""
        return Recipe(stages=self.stages, published=self.published)


def ordered(recipe: Recipe) -> dict[str, Stage]:
    """The stages in topological order; raises if the recipe cannot run."""
    declared = recipe.stages
    if not declared:
        raise UserError("the recipe adds no stages; call run(Stage, 'NAME', …) in it")
    for name in (*declared, *recipe.published):
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise UserError(
                f"the recipe names {name!r}, which cannot be the name of a folder or file inside "
                "of --out; change it"
            )
    made = {name: stage.KIND for name, stage in declared.items()}
    graph = {}
    for name, stage in declared.items():
        fields.check(stage, name)
        references = inputs.references(stage)
        for field, target in references.items():
            if target not in declared:
                raise UserError(
                    f"{name}.{field} = '{STAGE}{target}', but the recipe has no stage "
                    f"{target!r}; {nearest(target, declared)}"
                )
        readiness.check_kinds(name, stage, made)
        graph[name] = list(dict.fromkeys(references.values()))
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise UserError(
            f"the stages {' -> '.join(error.args[1])} take their inputs from one another in a "
            f"circle; one of them needs another input"
        ) from error
    return {name: declared[name] for name in order}


def results(stages: Mapping[str, Stage]) -> list[str]:
    """The stages whose folders lie in --out itself."""
    read = {target for stage in stages.values() for target in inputs.references(stage).values()}
    return [name for name in stages if name in RESULTS or name not in read]


def run(
    recipe: Recipe,
    out: epath.PathLike,
    *,
    start: str = "",
    keep: str = "",
    documentation: str = "",
    command: str = "qac run …",
) -> dict[str, Artifact]:
    """Runs the unfinished stages, and `start` again: later ones too where its result changes.

    keep="none": at the end only results and what these refer to are left, and the same run does
    nothing more, unless it is to keep "all". Returns the artefacts that are left.
    """
    stages = ordered(recipe)
    root, front = epath.Path(out), results(stages)
    places = {name: name if name in front else f"{artifacts.STAGES}/{name}" for name in stages}
    folders = {name: root / place for name, place in places.items()}
    if start and start not in stages:
        raise UserError(f"the recipe has no stage {start!r}; {nearest(start, stages)}")
    sources = {
        f: places.get(s[len(STAGE) :].split("/")[0], "") for f, s in recipe.published.items()
    }
    done = root / _DONE
    thinned = done.exists()
    refuse_foreign(
        root, [artifacts.STAGES, *places.values()], {} if thinned else sources, recipe.data_dir
    )
    readiness.check(stages, recipe.data_dir)
    for stage in stages.values():
        stage.check()
    inputs.look_up(stages)
    here = processes.place()
    if keep == "none" and here.count != 1:
        raise UserError("--keep none is for one process; leave it out")
    key = _key(stages, recipe.data_dir) if keep == "none" or thinned else ""
    again = "--keep all makes the other stages again"
    if thinned and keep != "all" and not start and done.read_text() == key:
        with contextlib.suppress(UserError):  # a result was damaged or removed
            kept = {name: artifacts.load(folders[name]) for name in front}
            progress.say(f"{root} is finished, and nothing is done; {again}")
            if keep:  # which was perhaps cut short
                _thin(folders, kept)
            return kept
    if thinned and not here.number:
        artifacts.write_atomically(done, "")  # results may not be those of its key any more
    if here.count != 1 and any(stage.SHARED for stage in stages.values()):
        # The processes find one another before any stage of theirs uses a device.
        from qac_jax.training import mesh

        mesh.join(here)
    finished: dict[str, Artifact] = {}
    for number, (name, declared) in enumerate(stages.items(), start=1):
        stage, folder = located(declared, folders, recipe.data_dir), folders[name]
        if name == start and not here.number:
            artifacts.remove(folder)
        progress.say(f"[{number}/{len(stages)}] {name} ({stage.verb})")
        try:
            finished[name] = execute(stage, folder, replace=True, documentation=documentation)
        except UserError as error:
            raise UserError(_failure(name, str(error), finished, command)) from error
        except Interrupted:
            progress.say(f"stopped in {name}; what is finished is kept; continue with: {command}")
            raise
        except Exception:
            progress.say(_failure(name, "see below", finished, command))
            raise
    for name, source in recipe.published.items():
        file = epath.Path(place(source, name, folders, ""))
        if file.exists():
            artifacts.write_atomically(root / name, file.read_text())
    if keep == "none":
        artifacts.write_atomically(done, key)
        finished = {name: finished[name] for name in front}
        progress.say(f"removed {_thin(folders, finished)} stages; the same with {again}")
    elif thinned and not here.number:
        done.unlink()
    return finished


def _key(stages: Mapping[str, Stage], data_dir: str) -> str:
    """What a whole run depends on: settings, versions, and what no stage of it makes."""
    described = {}
    for name, stage in stages.items():
        here = located(stage, {target: f"{STAGE}{target}" for target in stages}, data_dir)
        here = inputs.resolved(here)
        settings, given = fields.describe(here), {}
        for field, of in inputs.declared(here).items():
            settings.pop(field, None)
            for part in inputs.split(here, field) if getattr(here, field) else ():
                named = part.startswith(STAGE) or TOKENIZER in of.metadata["kinds"]
                given[f"{field}: {part}"] = part if named else inputs.identity(part)
        described[name] = [settings, sorted(given.values()), here.VERSION, here.environment()]
    return fields.digest(described)


def _thin(folders: Mapping[str, epath.Path], kept: Mapping[str, Artifact]) -> int:
    """Removes the stages that no result is or refers to; returns how many."""
    needed = {os.path.realpath(folders[name]) for name in kept}
    for artifact in kept.values():
        texts = artifact.info.get("texts")
        for of in (artifact.info.get("encoder"), *(texts if isinstance(texts, list) else ())):
            if isinstance(of, dict):
                needed |= set(map(os.path.realpath, corpus.places(of, artifact.path)))
    removed = 0
    for name, folder in folders.items():
        if folder.exists() and os.path.realpath(folder) not in needed:
            try:
                artifacts.remove(folder)
                removed += 1
            except UserError as error:
                progress.say(f"{name} is kept: {error}")
    return removed


def fitting(sizes: Mapping[str, int], *recipes: Mapping[str, Stage]) -> list[dict[str, int]]:
    """Of these numbers those that each recipe has a stage or an input for; every one has a use."""
    known = [
        {*of, *(n for stage in of.values() for n in inputs.set_inputs(stage))} for of in recipes
    ]
    every = set[str]().union(*known)
    for name in sizes.keys() - every:
        raise UserError(f"sizes: {name!r} is neither a stage nor an input; {nearest(name, every)}")
    return [{name: size for name, size in sizes.items() if name in names} for names in known]


def plan(
    recipe: Recipe,
    sizes: Mapping[str, int] | None = None,
    *,
    here: bool = False,
    done: Mapping[str, Plan] | None = None,
) -> list[Plan]:
    """The plan of a dry run: each stage's settings and the sizes that are known beforehand.

    `sizes`: the numbers of items of stages, and of files by the field that takes them. `here`:
    documents are counted, and every plan has the seconds on this machine. `done`: of stages whose
    plan is known.
    """
    plans: dict[str, Plan] = {}
    stages, each, done = ordered(recipe), {}, done or {}
    (sizes,) = fitting(sizes or {}, stages)
    if here:
        found = {name: stage.survey(recipe.data_dir) for name, stage in stages.items()}
        surveyed = {name: of for name, of in found.items() if of is not None}
        sizes = {**{name: count for name, (count, _) in surveyed.items()}, **sizes}
        each = {name: seconds for name, (_, seconds) in surveyed.items()}
    for name, stage in stages.items():
        if name in done:
            plans[name] = done[name]
            continue
        references = inputs.references(stage)
        models = readiness.local_models(stage, recipe.data_dir)
        given = {field: sizes[field] for field in inputs.set_inputs(stage) if field in sizes}
        given |= {costs.OWN: sizes[name]} if name in sizes else {}
        before: dict[str, Any] = costs.named(stage)
        before |= {field: {"count": size} for field, size in given.items()}
        before |= {field: plans[target]["plan"] for field, target in references.items()}
        before |= {field: {"folder": place} for field, place in models.items()}
        of_stage = plan_of(stage, before)
        plans[name] = {"stage": name, "inputs": references, "models": models, **of_stage}
        if name in sizes:
            plans[name]["plan"]["count"] = sizes[name]
        plans[name]["missing"] = readiness.missing(stage, recipe.data_dir)
    if here:
        costs.add_seconds(stages, list(plans.values()), each)
    return list(plans.values())


def plan_of(stage: Stage, plans_before: Plans) -> Plan:
    """One stage's settings, which of them are not the defaults, and what it would do."""
    stage.check()
    values, leaves = fields.values(stage), fields.flat(type(stage))
    affecting = {
        name: fields.describe(values[name])
        for name, leaf in leaves.items()
        if leaf.field.metadata.get("affects_result", True)
    }
    return {
        "verb": stage.verb,
        "kind": stage.KIND,
        "fields": affecting,
        "set": [name for name in affecting if values[name] != leaves[name].field.default],
        "plan": stage.plan(plans_before),
    }


def refuse_foreign(
    root: epath.Path, names: Collection[str], published: Mapping[str, str], data_dir: str
) -> None:
    """Only an empty folder is written to, or one in which some of these names already are; nothing
    through a link or around the data; a published file only where the folder it is from is."""
    if root.exists() and not root.is_dir():
        raise UserError(f"{root} is a file; give a folder to write to")
    for inside in (root, *(root / name for name in (*names, *published))):
        artifacts.refuse_link(inside)
    data, above = os.path.realpath(data_dir), os.path.realpath(root)
    if data_dir and os.path.commonpath([data, above]) == above:
        raise UserError(f"--data_dir {data_dir} lies in --out {root}; choose another --out")
    children = [p for p in root.iterdir() if not p.name.startswith(".")] if root.exists() else []
    known = any(p.name in names or artifacts.peek(p) is not None for p in children)
    foreign = [p for p in children if not known]
    for file, source in published.items():
        if not (root / source).exists():
            foreign += [p for p in children if p.name == file]
    if foreign:
        raise UserError(
            f"{root} is not empty and not a folder of this recipe (it holds {foreign[0].name}); "
            "choose another --out or empty it"
        )


def _failure(name: str, why: str, finished: Collection[str], command: str) -> str:
    kept = (
        f"finished and kept: {', '.join(finished)}" if finished else "nothing was finished before"
    )
    return f"stage {name} failed: {why} [{kept}; continue with: {command}]"
