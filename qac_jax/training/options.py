"""The settings of a training run in groups; imports no JAX, for the command line."""

import dataclasses

from qac_jax import extras
from qac_jax.errors import UserError
from qac_jax.fields import option


PRECISIONS = ("auto", "fast", "float32", "mixed", "bfloat16", "float16")
OPTIMIZERS = ("adamw", "adamw_hf", "lamb", "lamb_paddle18")
SCHEDULES = ("linear", "cosine", "constant", "paddle_jump")

# What `--help` of training lists of the settings that gin binds.
OF_OBJECTIVE = {
    "objectives/NAME.gin": extras.gin_names("objectives"),
    "models/NAME.gin": extras.gin_names("models"),
}
OF_OPTIMIZER = {
    "optimizers.Optimizer.name": OPTIMIZERS,
    "optimizers.Optimizer.schedule_name": SCHEDULES,
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Length, batch size and learning rate of the training."""

    steps: int = option(0, "number of optimiser steps (or --total_examples, or --epochs)")
    total_examples: int = option(0, "number of training examples")
    epochs: float = option(0.0, "passes over the examples")
    batch_size: int = option(32, "examples per optimiser step, over all devices", at_least=1)
    microbatch: int = option(
        0, "examples computed at a time (0: all)", affects_result=False, at_least=0
    )
    learning_rate: float = option(0.0, "learning rate (0: the optimiser's)")
    max_skips: int = option(0, "steps with a non-finite loss that may be skipped")

    def total_steps(self, examples: int) -> int:
        """The number of optimiser steps, for an epoch of this number of examples."""
        lengths = "steps", "total_examples", "epochs"
        chosen = {name: value for name in lengths if (value := getattr(self, name))}
        if len(chosen) != 1 or min(chosen.values()) < 0:
            listed = " and ".join(f"{name}={value}" for name, value in chosen.items())
            raise UserError(
                f"the length of the run is set by {listed or 'nothing'}; give one of --steps, "
                "--total_examples and --epochs, greater than 0"
            )
        seen = self.total_examples or int(self.epochs * examples)
        total = self.steps or seen // self.batch_size
        if total < 1:
            raise UserError(
                f"{seen} examples are fewer than one batch of {self.batch_size}; train for longer "
                "or make batch_size smaller"
            )
        return total


@dataclasses.dataclass(frozen=True)
class Devices:
    """How a model and its batches are laid out over devices."""

    mesh: tuple[int, ...] = option(
        (-1, 1, 1),
        "sizes of the mesh axes data, fsdp, tensor (-1: the rest of the devices)",
        affects_result=False,
    )
    pack: bool = option(False, "compute texts without their padding", affects_result=False)


@dataclasses.dataclass(frozen=True)
class Monitoring:
    """Settings of logs, checkpoints, validation and profiles."""

    log_every: int = option(50, "steps between log lines", affects_result=False)
    save_every: int = option(1000, "steps between checkpoints", affects_result=False)
    keep: int = option(2, "number of latest checkpoints to keep", affects_result=False)
    validate_every: int = option(0, "steps between validations (0: at the end)")
    validation_batches: int = option(0, "batches of a validation (0: all)")
    best: str = option("", "metric of validation that chooses the result (default: the last step)")
    profile: str = option("", "steps to profile, such as 10:15", affects_result=False)
    tensorboard: bool = option(False, "write TensorBoard's event files", affects_result=False)
