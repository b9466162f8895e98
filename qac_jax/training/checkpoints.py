"""Checkpoints of a run: asynchronous, restorable onto another mesh, and only by the same run.

Only this file uses Orbax. A checkpoint is the state as nested dicts of plain arrays (so it does not
depend on classes of Flax or Optax) and one JSON: the loader's state and the identity of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from qac_jax.errors import UserError


Json = dict[str, Any]


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


def abstract_like(tree: Any, shardings: Any) -> Any:
    """Shapes and types with the shardings of the arrays to restore."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree,
        shardings,
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
