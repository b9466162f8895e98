"""What the stages of a recipe take on this machine, from trying each kind of work on a little.

    qac plan own_corpus --data_dir DATA --budget small --here

Trainings compile and run a few steps of their objective. Verbs that read passages run on some of
the recipe's own, or on made-up ones where its documents are not there. What reads the model of a
training that has not run is given the one that this starts from; if there is none, its FLOPs at the
training's rate. Searching and judging are counted by the rates of `costs.CORE`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qac_jax import fields, processes, progress
from qac_jax.formats import documents as documents_lib
from qac_jax.pipeline import inputs, readiness
from qac_jax.pipeline import stage as stage_lib
from qac_jax.pipeline.stage import Stage
from qac_jax.stages.prepare import Prepare


# Passages that a verb is tried on: first the fewer, which loads and compiles, then the more.
_BY_MODEL = {"embed": "encoder", "generate": "generator"}
_OF_MODELS, _OF_CORES = (32, 96), (256, 4096)
_ON_CORES = ("prepare", "extract", "tokenize", "bm25")
# One process does so many of them, before there is a second file for another.
_OF_PROCESS = {"prepare": 130_000, "extract": 1024, "tokenize": 4096}
_WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "l", "n", "rt", "st")]
_COUNTING = 10.0  # seconds
_LONG = 40  # words of a made-up passage


@dataclasses.dataclass(frozen=True)
class Documents:
    """Some of a recipe's documents; for stages that prepare documents which are there, passages,
    where they are counted within seconds, and seconds of one."""

    some: Sequence[Any] = ()
    passages: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


def look_at(stages: Mapping[str, Stage], data_dir: str) -> Documents:
    """Reads documents for a few seconds, and cuts some of them."""
    some: list[Any] = []
    passages, seconds = {}, {}
    for name, stage in stages.items():
        if not isinstance(stage, Prepare) or readiness.missing(stage, data_dir):
            continue
        stage = inputs.resolved(inputs.located(stage, {}, data_dir))
        first: list[Any] = []
        began, total, each = time.monotonic(), 0, 0.0
        format, path = stage.source()
        options: dict[str, Any] = stage.reader_options()
        for document in documents_lib.read(format, path, skip_bad=None, **options):
            total += 1
            first += [document] if total <= _OF_CORES[1] else []
            if (spent := time.monotonic() - began) > _COUNTING:
                break
        else:
            spent = time.monotonic() - began
            cutting = time.monotonic()
            cutter = passages.cutter_of(stage.cutting, stage.seed, stage.tokenizer, stage.splitter)
            if not (found := sum(1 for document in first for _ in cutter.records(document))):
                continue
            each = (time.monotonic() - cutting) / found
            passages[name] = round(total * found / len(first))
            seconds[name] = each + spent / passages[name]
        some = some or first
    return Documents(some, passages, seconds)


@dataclasses.dataclass(frozen=True)
class Tried:
    """Seconds of one item, and those before the first one: loading and compiling."""

    each: float
    before: float
    per_flop: float = 0.0


def add(stages: Mapping[str, Stage], plans: Sequence[dict[str, Any]], documents: Documents) -> None:
    """Adds to every plan its `seconds_here`, where its size is known."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qac_plan_") as folder:
        trying = _Trying(stages, plans, Path(folder), documents)
        for one in plans:
            seconds = trying.seconds(one["stage"])
            if seconds is not None:
                one["plan"]["seconds_here"] = seconds
    progress.say(f"tried on this machine in {progress.human_seconds(time.monotonic() - began)}")


class _Trying:
    def __init__(
        self,
        stages: Mapping[str, Stage],
        plans: Sequence[Mapping[str, Any]],
        folder: Path,
        documents: Documents,
    ):
        self._stages, self._folder = stages, folder
        self._plans = {one["stage"]: one for one in plans}
        self._preparing = documents.seconds
        self._texts = _texts(documents.some)
        self._known: dict[str, Tried] = {}

    def seconds(self, name: str) -> float | None:
        """Those of a stage; None where its size is not known."""
        stage, plan = self._stages[name], self._plans[name]["plan"]
        if "batch_size" in plan:
            if not plan.get("steps"):
                return None
            tried = self._training(name)
            return tried.before + plan["steps"] * plan["batch_size"] * tried.each
        count = plan.get("count")
        if count and stage.VERB in _BY_MODEL and not getattr(stage, "imported", ""):
            return self._by_model(name, stage, count)
        if count and stage.VERB in _ON_CORES:
            if name in self._preparing:
                tried = Tried(self._preparing[name], 0.0)
            else:
                tried = self._verb(stage, {})
            files = count / _OF_PROCESS.get(stage.VERB, count)
            return tried.before + tried.each * count / min(processes.cores(), max(1.0, files))
        if "core_hours" in plan:
            return float(3600 * plan["core_hours"] / processes.cores())
        return None

    def _training(self, name: str) -> Tried:
        """Of an example of a training."""
        stage: Any = self._stages[name]
        plans = self._plans[name]
        key = fields.digest({"objective": fields.describe(stage.objective), "plan": plans["plan"]})
        if key not in self._known:
            progress.say(f"trying a step of {name}")
            found = _trial(stage, plans["plan"])
            of_one = found.seconds / found.rows
            per_flop = found.seconds / found.flops if found.flops else 0.0
            self._known[key] = Tried(of_one, found.compiling, per_flop)
        return self._known[key]

    def _by_model(self, name: str, stage: Stage, count: float) -> float | None:
        """Of a verb that applies a model to passages."""
        field = _BY_MODEL[stage.VERB]
        place, maker = self._model(name, field)
        if place:
            tried = self._verb(stage, {field: place})
            return tried.before + count * tried.each
        flops = self._plans[name]["plan"].get("flops")
        if not maker or not flops:
            return None
        tried = self._training(maker)
        return tried.before / 3 + float(flops) * tried.per_flop

    def _model(self, name: str, field: str) -> tuple[str, str]:
        """The model in an input: where it lies, or one of its shape; and the training that makes
        it."""
        one = self._plans[name]
        before = one["inputs"].get(field)
        if not before:
            return one["models"].get(field, ""), ""
        plan = self._plans[before]["plan"]
        if "batch_size" in plan:
            return plan.get("started from", ""), before
        return self._model(before, "model")

    def _verb(self, stage: Stage, models: Mapping[str, str]) -> Tried:
        """A verb run on a few passages, and on more of them."""
        told = fields.describe(stage)
        for field in (*inputs.declared(stage), "seed"):
            told.pop(field, None)
        key = fields.digest({"verb": stage.VERB, "settings": told, "models": dict(models)})
        if key not in self._known:
            progress.say(f"trying {stage.VERB}")
            few, more = _OF_MODELS if models else _OF_CORES
            first = self._run(stage, few, models)
            # A model's program is compiled the first time only.
            again = self._run(stage, few, models) if models else first
            each = max(self._run(stage, more, models) - again, 0.0) / (more - few)
            self._known[key] = Tried(each, max(first - few * each, 0.0))
        return self._known[key]

    def _run(self, stage: Stage, count: int, models: Mapping[str, str]) -> float:
        """Seconds of a stage over so many passages."""
        given: dict[str, Any] = {}
        for name, field in inputs.set_inputs(stage).items():
            given[name] = field.default if isinstance(field.default, str) else ""
        given |= models
        if "workers" in fields.flat(type(stage)):
            given["workers"] = 1
        source = self._folder / f"texts_{count}.jsonl"
        if not source.exists():
            some = itertools.islice(itertools.cycle(self._texts), count)
            lines = (json.dumps({"_id": f"d{n}", **text}) for n, text in enumerate(some))
            source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if stage.VERB == "prepare":
            given |= {"documents": str(source), "format": "jsonl", "packages": ""}
            given |= {"options": "", "columns": ""}
        else:
            given["passages"] = str(self._prepared(source))
        if stage.VERB == "generate":
            given["round_trip"] = 0  # it would search an index
        if stage.VERB == "tokenize":
            stage = type(stage)()
            given = {"task": "mlm", "passages": given["passages"], "workers": 1}
        with tempfile.TemporaryDirectory(dir=self._folder) as out, progress.silence():
            began = time.monotonic()
            stage_lib.execute(fields.change(stage, given), Path(out) / "out")
            return time.monotonic() - began

    def _prepared(self, source: Path) -> Path:
        """The same texts as an artefact of passages."""
        made = source.with_suffix("")
        if not made.exists():
            stage = Prepare.make(documents=str(source), format="jsonl", cut="none", workers=1)
            with progress.silence():
                stage_lib.execute(stage, made)
        return made


def _trial(stage: Any, plan: Mapping[str, Any]) -> Any:
    """A few steps of the training that has this plan."""
    from qac_jax.data.featurizer import settle
    from qac_jax.data.form import Form
    from qac_jax.objectives.objective import Context
    from qac_jax.training import train, trial

    reading, schedule = stage.reading, stage.schedule
    kind = settle(plan["kind"], Form(), lengths=reading.lengths, settings=reading.settings)
    objective: Any = train.shaped(stage.objective, plan["started from"] or "")
    objective = objective.bind(Context(precision=train.precision_here(stage.precision)))
    return trial.run(objective, kind, schedule.batch_size, schedule.microbatch)


def _texts(documents: Sequence[Any]) -> list[dict[str, str]]:
    """Titles and texts of documents' passages; made-up ones where there are none."""
    found = [
        {"title": document.title, "text": part.text}
        for document in documents
        for part in document.passages or document.sections
        if part.text.strip()
    ]
    rng = random.Random(0)
    made = ({"title": "", "text": " ".join(rng.choices(_WORDS, k=_LONG))} for _ in range(256))
    return found or list(made)
