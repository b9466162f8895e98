"""Parameters on disk: an Orbax folder of nested dicts of plain arrays, and their identity."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import jax
import numpy as np
from etils import epath


Nested = dict[str, Any]


def save(folder: epath.PathLike, params: Any) -> None:
    """Writes a tree of arrays; every process of a run calls it with its part of the arrays."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath(os.fspath(folder)), params, force=True)


def load(folder: epath.PathLike) -> Nested:
    """What `save` wrote, as numpy arrays on the host."""
    import orbax.checkpoint as ocp

    folder = os.path.abspath(os.fspath(folder))
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(folder).item_metadata.tree
        to_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(folder, restore_args=to_numpy)


def identity(params: Any) -> str:
    """A hash of names, shapes, types and bytes: Orbax folders are not the same byte for byte."""
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    digest = hashlib.sha256()
    for name in sorted(flat):
        array = np.asarray(flat[name])
        digest.update(f"{name}\n{array.dtype}\n{array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
