"""Checkpoints of a run, asynchronous and restorable onto another mesh; the best one; averages.

Only this file uses Orbax. A checkpoint is the state as nested dicts of plain arrays (so it does not
depend on classes of Flax or Optax) and one JSON: the loader's state and the identity of the run.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from qac_jax.data.loader import Loader
from qac_jax.errors import UserError, nearest
from qac_jax.training.mesh import announce
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine, State


Json = dict[str, Any]


class Kept:
    """The states in a run's folder; `identity` describes the run (see Checkpoints)."""

    def __init__(
        self, folder: epath.Path, identity: Mapping[str, Any], engine: Engine, chosen: Monitoring
    ):
        self._last = Checkpoints(
            folder / "checkpoints", identity, keep=chosen.keep, keep_every=chosen.keep_every
        )
        self._best = Checkpoints(folder / "best", identity, keep=None)
        self._target = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            engine.abstract,
            engine.shardings,
        )
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

    def measured(self, step: int, state: State, figures: Mapping[str, float]) -> None:
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


@dataclasses.dataclass
class Best:
    """The best validation so far by one metric; losses and perplexities are minimised."""

    measure: str
    value: float | None = None
    step: int | None = None

    def improves(self, step: int, measured: Mapping[str, float]) -> bool:
        """Whether this is a new best, which is then recorded."""
        if not self.measure:
            return False
        names = {name.removeprefix("validation/"): value for name, value in measured.items()}
        if self.measure not in names:
            raise UserError(
                f"best={self.measure!r} is not measured in validation; "
                + nearest(self.measure, names)
            )
        value = names[self.measure]
        smaller = "loss" in self.measure or "perplexity" in self.measure
        if self.value is None or (value < self.value if smaller else value > self.value):
            self.value, self.step = value, step
            return True
        return False

    def facts(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step}


class Checkpoints:
    """The checkpoints of one run in one folder.

    `identity` describes the run as JSON: {"model": {…}, "data": …, "settings": {…}}. Restoring a
    checkpoint with another identity raises UserError.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        identity: Mapping[str, Any],
        *,
        keep: int | None = 2,
        keep_every: int = 0,
    ):
        self.folder = epath.Path(os.path.abspath(os.fspath(folder)))
        self.identity = json.loads(json.dumps(identity))  # as it will be read back
        self._remove_halves()
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, keep_period=keep_every or None, cleanup_tmp_directories=True
            ),
        )

    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of all checkpoints on disk."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, facts: Mapping[str, Any]) -> None:
        """Copies the state off the devices, and writes it while training goes on."""
        if step in self._manager.all_steps():
            return
        meta = {"identity": self.identity, "facts": dict(facts)}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(plain(state)), meta=ocp.args.JsonSave(meta)
            ),
        )

    def restore(self, abstract: Any, step: int | None = None) -> tuple[Any, Json]:
        """(state, facts) of a step (default: the last); `abstract` has shapes and shardings."""
        step = self.latest() if step is None else step
        try:
            stored = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )
            self._check_identity(stored["meta"]["identity"])
            target = plain(abstract)
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
            )
            return like(abstract, restored["state"]), stored["meta"]["facts"]
        except (KeyError, TypeError, ValueError, OSError) as error:
            why = str(error).strip().split("\n")[0][:200]
            raise UserError(
                f"the checkpoint {self.folder / str(step)} cannot be read ({why}); remove it, and "
                "the run continues from the one before"
            ) from error

    def keep_only(self, step: int | None) -> None:
        """Removes all checkpoints but that of `step`."""
        for other in self.steps():
            if other != step:
                self._manager.delete(other)

    def wait(self) -> None:
        """Returns when everything is written."""
        self._manager.wait_until_finished()

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Completes what is being written where the block ends with an error.

        Several processes complete a checkpoint together, so none waits for it after its own error.
        """
        try:
            yield
        except Exception:
            if jax.process_count() == 1:
                self.wait()
            raise

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def _remove_halves(self) -> None:
        """A checkpoint whose removal was cut short, or that lost files with the power, does not
        exist: it would be taken for the last one, or for one that need not be saved again."""
        if jax.process_index() or not self.folder.exists():
            return
        for step in self.folder.iterdir():
            if step.name.isdecimal() and _is_half(step):
                step.rmtree()

    def _check_identity(self, stored: Mapping[str, Any]) -> None:
        for part in self.identity:
            difference = _difference(stored.get(part), self.identity[part], part)
            if difference:
                raise UserError(
                    f"the checkpoint in {self.folder} belongs to a run with another {part} "
                    f"({difference}); give the settings of that run, or another --out"
                )


def _is_half(step: epath.Path) -> bool:
    """Whether parts of a checkpoint are not there.

    Orbax writes no empty files, and does not bring its small ones to the disk. One that cannot be
    read just now is left alone.
    """
    try:
        for name in ("meta/metadata", "state/_METADATA"):
            json.loads((step / name).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    return any(
        os.path.getsize(os.path.join(folder, name)) == 0
        for folder, _, names in os.walk(os.fspath(step))
        for name in names
    )


def plain(tree: Any) -> Json:
    """Any tree as nested dicts by the names in its leaves' paths."""
    result: Json = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = _names(path)
        level = result
        for name in names[:-1]:
            level = level.setdefault(name, {})
        level[names[-1]] = leaf
    return result


def like(tree: Any, nested: Mapping[str, Any]) -> Any:
    """The inverse of `plain` for a tree of the same structure."""

    def one(path: Any, _: Any) -> Any:
        level: Any = nested
        for name in _names(path):
            level = level[name]
        return level

    return jax.tree_util.tree_map_with_path(one, tree)


def _names(path: Any) -> list[str]:
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def _difference(stored: Any, own: Any, name: str) -> str:
    """The first setting in which two descriptions differ, as text; "" if they are equal."""
    if isinstance(stored, dict) and isinstance(own, dict):
        for key in sorted(set(stored) | set(own)):
            if text := _difference(stored.get(key), own.get(key), f"{name}.{key}"):
                return text
        return ""
    return "" if stored == own else f"{name} is {_short(stored)} there and {_short(own)} here"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def averaged(trees: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of trees of parameters, in float64 and back to each array's own type.

    A retriever that was fine-tuned for one corpus keeps more of what its start knew when its
    weights are averaged with the start's (WiSE-FT, Wortsman et al. 2022).
    """
    names = [_shapes(tree) for tree in trees]
    for other in names[1:]:
        if other != names[0]:
            unlike = sorted({*names[0].items()} ^ {*other.items()})[0]
            raise UserError(
                f"the models have different parameters (such as {unlike[0]}, {unlike[1]}); give "
                "models of one shape"
            )
    total = float(sum(weights))

    def mean(*leaves: Any) -> np.ndarray:
        summed = sum(
            np.asarray(leaf, np.float64) * (weight / total)
            for leaf, weight in zip(leaves, weights, strict=True)
        )
        return np.asarray(summed).astype(np.asarray(leaves[0]).dtype)

    return jax.tree.map(mean, *trees)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(np.shape(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
