"""What a run keeps of its states: checkpoints to resume from, and the best one by a metric."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from etils import epath

from qac_jax.training.checkpoints import Checkpoints, abstract_like
from qac_jax.training.feed import Loader
from qac_jax.training.journal import Figures, announce
from qac_jax.training.settings import Monitoring
from qac_jax.training.step import Engine, State
from qac_jax.training.validation import Best


class Kept:
    """The states in a run's folder; `identity` describes the run (see Checkpoints)."""

    def __init__(
        self, folder: epath.Path, identity: Mapping[str, Any], engine: Engine, chosen: Monitoring
    ):
        self._last = Checkpoints(
            folder / "checkpoints", identity, keep=chosen.keep, keep_every=chosen.keep_every
        )
        self._best = Checkpoints(folder / "best", identity, keep=None)
        self._target = abstract_like(engine.abstract, engine.shardings)
        self._metric, self._by = chosen.best, Best(chosen.best)

    def begin(self, engine: Engine, data: Loader, params: Any, total: int) -> tuple[State, int]:
        """The last checkpoint and its step, with the data where they were; or a new state and 0."""
        if self._last.latest() is None:
            state, step = engine.create(params), 0
        else:
            state, facts = self._last.restore(self._target)
            step, self._by = facts["step"], Best(self._metric, **facts["best"])
            data.restore(facts["loader"])
            announce(f"resuming after step {step} of {total}")
        self._best.keep_only(self._by.step)  # a killed run may have saved later ones
        return state, step

    def measured(self, step: int, state: State, figures: Figures) -> None:
        """Saves the state if it is the best so far."""
        if self._by.improves(step, figures):
            self._best.save(step, state, {"step": step, "best": self._by.facts()})

    def save(self, step: int, state: State, data: Loader) -> None:
        self._best.wait()  # the facts name it, so it must be complete
        facts = {"step": step, "loader": data.state(), "best": self._by.facts()}
        self._last.save(step, state, facts)
        self._best.keep_only(self._by.step)

    def finishing(self) -> contextlib.AbstractContextManager[None]:
        """See Checkpoints.finishing."""
        return self._last.finishing()

    def close(self) -> None:
        """Completes what is being written."""
        self._last.close()

    def result(self, step: int, state: State) -> State:
        """The last state, or the best one where a metric chooses; closes both folders."""
        self.close()
        if self._by.step not in (None, step):
            announce(
                f"the result is that of step {self._by.step}: {self._metric} {self._by.value:.5g}"
            )
            state, _ = self._best.restore(self._target, self._by.step)
        self._best.close()
        return state
