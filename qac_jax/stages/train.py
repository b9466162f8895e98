"""`qac pretrain`, `qac finetune`: training examples and an objective → model parameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

from qac_jax import fields
from qac_jax.artifacts import Writer
from qac_jax.data.loader import Reading
from qac_jax.errors import UserError
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.inference.settings import POOLINGS
from qac_jax.pipeline import inputs as pipeline_inputs
from qac_jax.pipeline.settings import Hosts
from qac_jax.pipeline.stage import MODEL, Inputs, Ref, Stage, at_most_one_of, input, option, part
from qac_jax.processes import Place
from qac_jax.training.settings import (
    OF_OBJECTIVE,
    OF_OPTIMIZER,
    PRECISIONS,
    Devices,
    Monitoring,
    Schedule,
)


STARTS = ("init", "words")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Stage):
    """Trains the objective that gin binds (`Train.objective = @mlm.Mlm()`)."""

    VERB = "pretrain"
    KIND = "parameters"
    SHARED = True
    VERSION = 3
    EXAMPLE = (
        "qac pretrain --gin_file objectives/mlm.gin --examples out/examples "
        "--steps 1000 --out out/encoder"
    )
    GROUPS = (at_most_one_of("init", "words"),)

    objective: Any = option(
        help="objective to train, in a --gin_file, and the model of a new encoder in another",
        shown={**OF_OBJECTIVE, "encoders.DualEncoderConfig.pooling": POOLINGS},
    )
    examples: Ref = input("training examples", kinds=("examples",))
    validation: Ref = input("validation examples", kinds=("examples",), default="")
    probe: Ref = input("triples to measure retrieval by", kinds=("examples",), default="")
    init: Ref = input(
        "model to initialise from", kinds=("parameters", MODEL), default="", aliases=("pretrained",)
    )
    words: Ref = input(
        "model whose word embeddings initialise a new model",
        kinds=("parameters", MODEL),
        default="",
    )
    optimizer: Any = option(None, "an Optimizer (default: AdamW)", shown=OF_OPTIMIZER)
    precision: str = option(
        "auto",
        f"precision of matrix products ({PRECISIONS_MEAN}; float16: for V100s)",
        choices=PRECISIONS,
    )
    schedule: Schedule = part(Schedule)
    reading: Reading = part(Reading)
    devices: Devices = part(Devices)
    hosts: Hosts = part(Hosts)
    monitoring: Monitoring = part(Monitoring)

    @property
    def verb(self) -> str:
        from qac_jax.objectives.objective import Objective

        if not isinstance(self.objective, Objective):
            return self.VERB
        return self.objective.verb(self.reading.kind)

    def check(self) -> None:
        from qac_jax.objectives.objective import Objective

        super().check()
        self.reading.check_installed()
        self.monitoring.check_probe(self.probe)
        if not isinstance(self.objective, Objective):
            raise UserError(
                f"Train.objective is a {type(self.objective).__name__}, which is not an objective; "
                "bind one of qac_jax/objectives, such as @mlm.Mlm()"
            )

    def environment(self) -> dict[str, str]:
        return self.monitoring.decisive()

    def place(self) -> Place:
        return self.hosts.place()

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.data.loader import Loader
        from qac_jax.hub import parameters
        from qac_jax.training import compiled, distributed, loop, result, start
        from qac_jax.training import mesh as meshes

        distributed.start(self.place())
        compiled.keep_between_runs()
        examples, schedule = inputs.artifact("examples"), self.schedule
        fills = self.objective.fills and not self.devices.pack
        pieces = schedule.microbatch or self.objective.chunk
        mesh = meshes.mesh_for(self.devices.mesh, schedule.batch_size, pieces, fills)
        precision = start.precision_here(self.precision)
        tokenizer = examples.path / parameters.TOKENIZER
        objective, initial = self._model(inputs, tokenizer, precision)
        data = Loader(
            os.fspath(examples.path),
            reading=self.reading,
            batch_size=schedule.batch_size,
            seed=self.seed,
            host=meshes.my_part(mesh),
            accelerators=distributed.accelerators(),
        )
        kind = data.featurizers[0]
        read = examples.info.get("reading", {})
        objective = objective.with_reading(kind.lengths, read, kind.settings)
        total = schedule.total_steps(data.examples_per_epoch)
        engine = self._engine(objective, total, mesh)
        if initial is not None:
            initial = start.placed(initial, engine.abstract.params, report=not self.words)
        with data:
            state = loop.train(
                engine,
                data,
                loop.Plan(total, self.monitoring),
                _work(out),
                identity=self._identity(inputs, data.identity, total, precision),
                params=initial,
                schedule=self._optimizer().schedule(total),
                pack=self.devices.pack,
                name=out.path.name,
                **self._held_out(inputs, mesh, kind.lengths, objective.chunk),
            )
        params = meshes.to_host(state.ema if schedule.ema else state.params)
        if distributed.is_first():
            keep = bool(self.monitoring.keep_every)
            result.write(out, _work(out), objective, params, tokenizer, checkpoints=keep)
            out.info.update(steps=total, batch_size=schedule.batch_size, precision=precision)
            out.info["device"] = mesh.devices.flat[0].device_kind
        distributed.barrier("written")

    def _model(self, inputs: Inputs, folder: epath.Path, precision: str) -> tuple[Any, Any]:
        """The objective for this precision and tokenizer (of `folder`), and its parameters."""
        from qac_jax.text import tokenizers
        from qac_jax.training import start, step

        objective = self.objective.with_precision(precision)
        objective, initial = start.initial(objective, inputs.get("init"))
        tokenizer = tokenizers.load(os.fspath(folder))
        objective = objective.with_tokenizer(tokenizer)
        if self.words:
            initial = start.word_vectors_of(inputs.path("words"), objective, tokenizer, self.seed)
        return step.chunk_of(objective, self.schedule.microbatch), initial

    def _engine(self, objective: Any, total: int, mesh: Any) -> Any:
        from qac_jax.training import mesh as meshes
        from qac_jax.training import start, step

        optimizer = self._optimizer()
        return step.Engine(
            objective=objective,
            tx=optimizer.build(total, start.abstract_params(objective)),
            mesh=mesh,
            rules=meshes.rules_named(self.devices.rules),
            seed=self.seed,
            microbatch=self.schedule.microbatch,
            ema=self.schedule.ema,
            max_skips=self.schedule.max_skips,
            frozen=optimizer.frozen,
        )

    def _held_out(self, inputs: Inputs, mesh: Any, lengths: Any, chunk: int) -> dict[str, Any]:
        """Loaders of the validation examples and of the probe's triples, where there are any."""
        from qac_jax.training import held_out

        loaders: dict[str, Any] = {}
        fills = self.objective.fills and not self.devices.pack
        if (examined := inputs.get_artifact("validation")) is not None:
            loaders["validation"] = held_out.validation(
                examined, self.reading, self.schedule.batch_size, mesh, fills, chunk
            )
        if (asked := inputs.get_artifact("probe")) is not None:
            held_out.check_probe(asked, inputs.artifact("examples"))
            loaders["probe"] = held_out.probe(asked, self.monitoring, lengths, mesh)
        return loaders

    def _identity(self, inputs: Inputs, data: Any, total: int, precision: str) -> dict[str, Any]:
        """What a checkpoint must agree in to be continued."""
        starts = Inputs({name: inputs[name] for name in STARTS if name in inputs})
        return {
            "model": fields.describe(self.objective),
            "data": data,
            "settings": {
                "total_steps": total,
                "optimizer": fields.describe(self._optimizer()),
                "seed": self.seed,
                "ema": self.schedule.ema,
                "precision": precision,
                "start": pipeline_inputs.identities(starts),
            },
        }

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        from qac_jax.training import estimate, start

        count, schedule = inputs.get("examples", {}).get("count") or 0, self.schedule
        steps = schedule.total_steps(count) if count or not schedule.epochs else None
        origin = inputs.get("init", {})
        folder = origin.get("folder") or origin.get("started from") or ""
        kind = self.reading.kind or inputs.get("examples", {}).get("task", "")
        estimated = estimate.plan(
            start.shaped(self.objective, folder),
            steps=steps,
            batch_size=schedule.batch_size,
            kind=kind,
            settings=self.reading.settings,
            lengths=self.reading.lengths,
            ema=bool(schedule.ema),
            encodes_twice=bool(schedule.microbatch) and not self.objective.splittable,
            pack=self.devices.pack,
        )
        known = {"kind": kind, "started from": folder or None}
        return {**known, **estimated, "learning_rate": self._optimizer().learning_rate}

    def _optimizer(self) -> Any:
        from qac_jax.training.optimizers import Optimizer

        optimizer = Optimizer() if self.optimizer is None else self.optimizer
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"Train.optimizer = {optimizer!r}; expected @optimizers.Optimizer()")
        if rate := self.schedule.learning_rate:
            optimizer = dataclasses.replace(optimizer, learning_rate=rate)
        return optimizer


def _work(out: Writer) -> epath.Path:
    """The scratch folder of a run: checkpoints and its log."""
    return out.scratch("training")
