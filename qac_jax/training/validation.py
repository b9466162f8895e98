"""Validation: metrics over the same batches every time, and the best step so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from qac_jax.errors import UserError, nearest
from qac_jax.training import mesh as meshes
from qac_jax.training.feed import Loader
from qac_jax.training.journal import Figures, means
from qac_jax.training.settings import PROBE
from qac_jax.training.step import Engine, State


@dataclasses.dataclass
class Best:
    """The best validation so far by one metric; losses and perplexities are minimised."""

    measure: str
    value: float | None = None
    step: int | None = None

    def improves(self, step: int, measured: Mapping[str, float]) -> bool:
        """Whether this is a new best, which is then recorded."""
        of_probe = any(name.startswith(PROBE) for name in measured)
        if not self.measure or self.measure.startswith(PROBE) != of_probe:
            return False
        names = {name.removeprefix("validation/"): value for name, value in measured.items()}
        if self.measure not in names:
            where = "the probe" if of_probe else "validation"
            raise UserError(
                f"best={self.measure!r} is not measured in {where}; " + nearest(self.measure, names)
            )
        value = names[self.measure]
        smaller = "loss" in self.measure or "perplexity" in self.measure
        if self.value is None or (value < self.value if smaller else value > self.value):
            self.value, self.step = value, step
            return True
        return False

    def facts(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step}


class Validation:
    """The mean of the metrics over the same batches every time."""

    def __init__(self, engine: Engine, data: Loader, limit: int = 0):
        self._engine, self._data, self._start = engine, data, data.state()
        spec = meshes.whole_spec(data.spec, engine.mesh)
        size = next(iter(spec.values())).shape[0]
        self._count = data.examples_per_epoch // size
        if limit:
            self._count = min(self._count, limit)
        if not self._count:
            raise UserError(
                f"the validation set has {data.examples_per_epoch} examples, less than one batch "
                f"of {size}; give more examples or a smaller validation batch size"
            )
        self._measure = engine.compile_measure(spec)

    def __call__(self, state: State) -> Figures:
        variables = state.variables
        if self._engine.ema:
            variables = {**variables, "params": state.ema}
        self._data.restore(self._start)
        records = []
        for _ in range(self._count):
            batch = meshes.place(next(self._data), self._engine.mesh)
            records.append(self._measure(variables, batch))
        return {f"validation/{name}": v for name, v in means(jax.device_get(records)).items()}
