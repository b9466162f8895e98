"""Checkpoints of a run, asynchronous and restorable onto another mesh; averages of parameters.

Only this file uses Orbax. A checkpoint is the state as nested dicts of plain arrays (so it does not
depend on classes of Flax or Optax) and one JSON: the loader's state, the best step so far and the
identity of the run.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import traverse_util
from orbax.checkpoint import checkpoint_managers as managers

from qac_jax.data.loader import Loader
from qac_jax.errors import UserError, nearest
from qac_jax.training.mesh import announce
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine, State


Json = dict[str, Any]

# What the names of metrics hold that are better when smaller; `likelihood` is the negative one.
_LOSSES = ("loss", "perplexity", "likelihood", "contrastive", "distillation")


class _ThatStep(managers.PreservationPolicy):
    """Preserves the checkpoint of one step."""

    step: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        return [checkpoint.step == self.step for checkpoint in checkpoints]


class Checkpoints:
    """The checkpoints in a run's folder: the last ones, and the best by one metric of validation
    (losses, by whatever name, are minimised).

    `identity` describes the run as JSON: {"model": {…}, "data": …, "settings": {…}}. Restoring a
    checkpoint with another identity raises UserError.
    """

    def __init__(
        self, folder: epath.Path, identity: Mapping[str, Any], engine: Engine, chosen: Monitoring
    ):
        self.folder = epath.Path(os.path.abspath(os.fspath(folder)))
        self.identity = json.loads(json.dumps(identity))  # as it will be read back
        self._metric, self._value, self._best = chosen.best, float("nan"), _ThatStep()
        self._target = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            engine.abstract,
            engine.shardings,
        )
        self._remove_halves()
        policies = [managers.LatestN(chosen.keep), self._best]
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=managers.AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
            ),
        )

    def begin(self, engine: Engine, data: Loader, params: Any, total: int) -> tuple[State, int]:
        """The last checkpoint and its step, with the data where they were; or a new state and 0."""
        if (last := self._manager.latest_step()) is None:
            return engine.create(params), 0
        state, facts = self._restore(last)
        best = facts.get("best") or {}
        self._value, self._best.step = best.get("value", self._value), best.get("step")
        data.restore(facts["loader"])
        announce(f"resuming after step {last} of {total}")
        return state, last

    def measured(self, step: int, state: State, data: Loader, figures: Mapping[str, float]) -> None:
        """Saves the state if it is the best so far."""
        if not self._metric:
            return
        names = {name.removeprefix("validation/"): value for name, value in figures.items()}
        if self._metric not in names:
            raise UserError(
                f"best={self._metric!r} is not measured in validation; "
                + nearest(self._metric, names)
            )
        value, before = names[self._metric], self._value
        smaller = any(word in self._metric for word in _LOSSES)
        if self._best.step is None or (value < before if smaller else value > before):
            self._value, self._best.step = value, step
            self.save(step, state, data)

    def save(self, step: int, state: State, data: Loader) -> None:
        """Copies the state off the devices, and writes it while training goes on."""
        if step in self._manager.all_steps():
            return
        best = None
        if self._best.step is not None:
            best = {"value": self._value, "step": self._best.step}
        meta = {"identity": self.identity, "facts": {"loader": data.state(), "best": best}}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(plain(state)), meta=ocp.args.JsonSave(meta)
            ),
        )

    def result(self, step: int, state: State) -> State:
        """The last state, or the best one where a metric chooses; closes the folder."""
        self._manager.wait_until_finished()
        if (best := self._best.step) not in (None, step):
            announce(f"the result is that of step {best}: {self._metric} {self._value:.5g}")
            state, _ = self._restore(best)
        self.close()
        return state

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Completes what is being written where the block ends with an error.

        Several processes complete a checkpoint together, so none waits for it after its own error.
        """
        try:
            yield
        except Exception:
            if jax.process_count() == 1:
                self._manager.wait_until_finished()
            raise

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def _restore(self, step: int) -> tuple[State, Json]:
        """The state and the facts of a step."""
        try:
            meta = ocp.args.Composite(meta=ocp.args.JsonRestore())
            stored = self._manager.restore(step, args=meta)
            self._check_identity(stored["meta"]["identity"])
            target = ocp.args.StandardRestore(plain(self._target))
            restored = self._manager.restore(step, args=ocp.args.Composite(state=target))
            return like(self._target, restored["state"]), stored["meta"]["facts"]
        except (KeyError, TypeError, ValueError, OSError) as error:
            why = str(error).strip().split("\n")[0][:200]
            raise UserError(
                f"the checkpoint {self.folder / str(step)} cannot be read ({why}); remove it, and "
                "the run continues from the one before"
            ) from error

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
            there, here = (
                traverse_util.flatten_dict({part: whole.get(part)}, sep=".")
                for whole in (stored, self.identity)
            )
            for name in sorted({*there, *here}):
                if there.get(name) != here.get(name):
                    raise UserError(
                        f"the checkpoint in {self.folder} belongs to a run with another {part} "
                        f"({name} is {_short(there.get(name))} there and {_short(here.get(name))} "
                        "here); give the settings of that run, or another --out"
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
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return traverse_util.unflatten_dict({_names(path): leaf for path, leaf in leaves})


def like(tree: Any, nested: Mapping[str, Any]) -> Any:
    """The inverse of `plain` for a tree of the same structure."""
    flat = traverse_util.flatten_dict(nested)
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[_names(path)], tree)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def averaged(trees: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of trees of parameters, in float64 and back to each array's own type.

    A retriever that was fine-tuned for one corpus keeps more of what its start knew when its
    weights are averaged with the start's (WiSE-FT, Wortsman et al. 2022).
    """
    shapes = [jax.tree.map(np.shape, tree) for tree in trees]
    if any(other != shapes[0] for other in shapes):
        raise UserError("the models have different parameters; give models of one shape")
    total = float(sum(weights))

    def mean(*leaves: Any) -> np.ndarray:
        pairs = zip(leaves, weights, strict=True)
        summed = sum(np.asarray(leaf, np.float64) * (weight / total) for leaf, weight in pairs)
        return np.asarray(summed).astype(np.asarray(leaves[0]).dtype)

    return jax.tree.map(mean, *trees)
