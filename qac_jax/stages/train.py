"""`qac pretrain`, `qac finetune`: training examples and an objective → model parameters."""

import dataclasses
import os
from typing import Any

from qac_jax import fields, hardware, processes
from qac_jax.artifacts import Writer
from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.data.loader import Loader, Reading
from qac_jax.errors import UserError
from qac_jax.hardware import PRECISIONS_MEAN
from qac_jax.inference.settings import POOLINGS
from qac_jax.pipeline import costs
from qac_jax.pipeline import inputs as pipeline_inputs
from qac_jax.pipeline.stage import Inputs, Plan, Plans, Ref, Stage, input, model_input, option, part
from qac_jax.text import tokenizers
from qac_jax.training.options import (
    OF_OBJECTIVE,
    OF_OPTIMIZER,
    PRECISIONS,
    Devices,
    Monitoring,
    Schedule,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Stage):
    """Trains the objective that gin binds (`Train.objective = @mlm.Mlm()`)."""

    VERB = "pretrain"
    KIND = "parameters"
    SHARED = True
    VERSION = 3
    EXAMPLE = "qac pretrain --gin_file objectives/mlm.gin --examples out/examples --out out/encoder"

    # An objectives.objective.Objective, whose `loss` training/step.py calls.
    objective: Any = option(
        help="objective to train, in a --gin_file, and the model of a new encoder in another",
        shown={**OF_OBJECTIVE, "encoders.DualEncoderConfig.pooling": POOLINGS},
    )
    examples: Ref = input("training examples", "examples")
    validation: Ref = input("validation examples", "examples", default="")
    init: Ref = model_input("model to initialise from", default="")
    optimizer: Any = option(None, "an Optimizer (default: AdamW)", shown=OF_OPTIMIZER)
    precision: str = option(
        "auto",
        f"precision of matrix products ({PRECISIONS_MEAN}; float16: for V100s)",
        choices=PRECISIONS,
    )
    schedule: Schedule = part(Schedule)
    reading: Reading = part(Reading)
    devices: Devices = part(Devices)
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
        if not isinstance(self.objective, Objective):
            kind = f"a {type(self.objective).__name__}, which is not an objective"
            raise UserError(f"Train.objective is {kind}; bind one, such as @mlm.Mlm()")

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax
        from jax.experimental import multihost_utils

        from qac_jax.hub import parameters
        from qac_jax.objectives.objective import Context
        from qac_jax.training import mesh as meshes
        from qac_jax.training import train
        from qac_jax.training.step import Engine

        meshes.join(processes.place())
        hardware.keep_programs()
        examples, schedule, pack = inputs.artifact("examples"), self.schedule, self.devices.pack
        microbatch = schedule.microbatch
        mesh = meshes.mesh_for(
            self.devices.mesh,
            schedule.batch_size,
            microbatch or self.objective.chunk,
            fills=self.objective.fills and not pack,
        )
        tokenizer = tokenizers.load(os.fspath(examples.path / parameters.TOKENIZER))
        for name in ("init", "validation"):
            if name in inputs:
                train.check_words(tokenizer, inputs[name])
        objective, initial = train.initial(self.objective, inputs.get("init"))
        data = Loader(
            os.fspath(examples.path),
            reading=self.reading,
            batch_size=schedule.batch_size,
            seed=self.seed,
            host=meshes.my_part(mesh),
            accelerators=0 if jax.default_backend() == "cpu" else jax.local_device_count(),
        )
        kind = data.featurizer
        precision = hardware.precision_on(jax.default_backend(), self.precision)
        objective = objective.bind(
            Context(
                tokenizer,
                lengths=kind.lengths,
                reading=examples.info.get("reading", {}),
                settings=kind.settings,
                precision=precision,
                chunk=microbatch,
            )
        )
        total, optimizer = schedule.total_steps(data.examples_per_epoch), self._optimizer()
        engine = Engine(
            objective,
            optimizer.build(total, train.abstract_params(objective)),
            mesh,
            seed=self.seed,
            microbatch=microbatch,
            max_skips=schedule.max_skips,
            frozen=optimizer.frozen,
        )
        if initial is not None:
            initial = train.placed(initial, engine.abstract.params)
        validation = None
        if (examined := inputs.get_artifact("validation")) is not None:
            validation = train.validation_loader(
                examined, self.reading, schedule.batch_size, engine, pack
            )
        settings = {  # in which a checkpoint must agree to be continued
            "total_steps": total,
            "optimizer": fields.describe(optimizer),
            "seed": self.seed,
            "precision": precision,
            "start": pipeline_inputs.identities(
                Inputs({name: inputs[name] for name in inputs if name == "init"})
            ),
        }
        work = out.scratch("training")  # of checkpoints and the log
        with data:
            state = train.train(
                engine,
                data,
                total,
                self.monitoring,
                work,
                identity={
                    "model": fields.describe(self.objective),
                    "data": data.identity,
                    "settings": settings,
                },
                params=initial,
                schedule=optimizer.schedule(total),
                pack=pack,
                name=out.path.name,
                validation=validation,
            )
        params = meshes.to_host(state.params)
        if meshes.is_first():
            train.write_result(out, work, objective, params, examples.path / parameters.TOKENIZER)
            out.info.update(steps=total, batch_size=schedule.batch_size, precision=precision)
            out.info["device"] = mesh.devices.flat[0].device_kind
        multihost_utils.sync_global_devices("written")

    def plan(self, inputs: Plans) -> Plan:
        count, schedule = inputs.get("examples", {}).get("count") or 0, self.schedule
        origin = inputs.get("init", {})
        folder = origin.get("folder") or origin.get("started from") or ""
        kind = self.reading.kind or inputs.get("examples", {}).get("task", "")
        objective, examples = self.planned(kind, folder)
        estimated = costs.of_training(
            objective,
            examples,
            batch_size=schedule.batch_size,
            steps=schedule.total_steps(count) if count or not schedule.epochs else None,
            pack=self.devices.pack,
        )
        known = {"kind": kind, "started from": folder or None}
        return {**known, **estimated, "learning_rate": self._optimizer().learning_rate}

    def planned(self, kind: str, folder: str) -> tuple[Any, Any]:
        """The objective in the shape of the model in a folder, and the examples of this kind."""
        from qac_jax.training import train

        objective = train.shaped(self.objective, folder)
        if not kind:
            return objective, None
        lengths, settings = self.reading.lengths, self.reading.settings
        return objective, settle(kind, Form(), lengths=lengths, settings=settings)

    def _optimizer(self) -> Any:
        from qac_jax.training.optimizers import Optimizer

        optimizer = Optimizer() if self.optimizer is None else self.optimizer
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"Train.optimizer = {optimizer!r}; expected @optimizers.Optimizer()")
        if rate := self.schedule.learning_rate:
            optimizer = dataclasses.replace(optimizer, learning_rate=rate)
        return optimizer
