"""Where the figures of a run are shown while it runs: TensorBoard, Weights & Biases.

They are opened before anything is compiled, so that what is missing is said at once.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

from qac_jax.errors import UserError
from qac_jax.progress import Mirror
from qac_jax.training.distributed import is_first
from qac_jax.training.events import EventFile
from qac_jax.training.settings import Monitoring


# In place of the settings, for all runs of a shell.
TENSORBOARD, WANDB = "QAC_TENSORBOARD", "WANDB_PROJECT"


def opened(monitoring: Monitoring, name: str) -> list[Mirror]:
    """The trackers of a run of this name; the first process of several has them."""
    if not is_first():
        return []
    mirrors: list[Mirror] = []
    if folder := monitoring.tensorboard or os.environ.get(TENSORBOARD, ""):
        mirrors.append(_event_file(folder, name))
    if project := monitoring.wandb or os.environ.get(WANDB, ""):
        mirrors.append(_Wandb(project, name))
    return mirrors


def _event_file(folder: str, name: str) -> EventFile:
    try:
        return EventFile(epath.Path(folder) / name)
    except OSError as error:
        raise UserError(
            f"tensorboard={folder!r} cannot be written to ({error.strerror or error}); give a "
            "folder for TensorBoard's files"
        ) from error


class _Wandb:
    """A run of Weights & Biases, the same one when training continues."""

    def __init__(self, project: str, name: str):
        try:
            library: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(
                f"wandb={project!r} needs the package wandb, which is not installed; pip install "
                "wandb, or leave the setting out"
            ) from error
        identity = hashlib.sha256(f"{project}/{os.path.abspath(name)}".encode()).hexdigest()[:16]
        try:
            self._run = library.init(project=project, name=name, id=identity, resume="allow")
        except Exception as error:  # its own classes, which change with its version
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"wandb={project!r} cannot be opened ({reason}); run `wandb login`, or set "
                "WANDB_MODE=offline, or leave the setting out"
            ) from error

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()
