"""Parameters read from and written to named tensors, by a table (models/backbone.py).

One table reads and writes, so that a round trip gives back the same bytes. Tables speak of layers
as a loop; `scanned` and `looped` turn parameter trees into and out of the stacked form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from qac_jax.errors import UserError
from qac_jax.models.backbone import Table


Tensors = dict[str, np.ndarray]


_PARTS = 3


def read(table: Table, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The parameters of a table, as a tree; every tensor must be there."""
    flat = {}
    for path, slot in table.items():
        tensor = tensors[slot.name]
        if slot.part is not None:
            if tensor.shape[-1] % _PARTS:
                raise UserError(f"{slot.name} of shape {tensor.shape} cannot be cut in {_PARTS}")
            tensor = np.split(tensor, _PARTS, axis=-1)[slot.part]
        flat[path] = np.ascontiguousarray(tensor.T if slot.transposed else tensor)
    return traverse_util.unflatten_dict(flat, sep="/")


def write(table: Table, params: Mapping[str, Any]) -> Tensors:
    """The tensors of a table, from a parameter tree that holds exactly its paths."""
    flat = traverse_util.flatten_dict(params, sep="/")
    if flat.keys() != table.keys():
        odd = sorted(flat.keys() ^ table.keys())
        raise UserError(
            f"the parameters do not fit the module: {odd[0]} is "
            + ("not one of its parameters" if odd[0] in flat else "missing")
        )
    parts: dict[str, list[np.ndarray]] = {}
    for path, slot in sorted(table.items(), key=lambda item: item[1].part or 0):
        tensor = np.asarray(flat[path])
        parts.setdefault(slot.name, []).append(tensor.T if slot.transposed else tensor)
    return {
        name: np.ascontiguousarray(p[0] if len(p) == 1 else np.concatenate(p, axis=-1))
        for name, p in parts.items()
    }


def looped(params: Any) -> Any:
    """The tree with every stack of layers as {"0": layer, "1": layer, …}, on the host."""
    return _map_stacks(params, _unstack)


def scanned(params: Any) -> Any:
    """The tree with every stack of layers as one layer with a leading axis, on the host."""
    return _map_stacks(params, _stack)


def _map_stacks(tree: Any, change: Any) -> Any:
    if not isinstance(tree, Mapping):
        return np.asarray(tree)
    return {
        name: change(branch) if _is_stack(name, branch) else _map_stacks(branch, change)
        for name, branch in tree.items()
    }


def _is_stack(name: str, branch: Any) -> bool:
    """Whether this is a stack of equal layers, and no module that has one beside other parts."""
    return name == "layers" and not any(n == "layers" or n.startswith("stack_") for n in branch)


def _unstack(layers: Mapping[str, Any]) -> dict[str, Any]:
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(layers).items()}
    if "0" in layers:
        return traverse_util.unflatten_dict(flat)
    count = len(next(iter(flat.values())))
    return {
        str(i): traverse_util.unflatten_dict({path: leaf[i] for path, leaf in flat.items()})
        for i in range(count)
    }


def _stack(layers: Mapping[str, Any]) -> dict[str, Any]:
    ordered = [traverse_util.flatten_dict(layers[str(i)]) for i in range(len(layers))]
    return traverse_util.unflatten_dict(
        {path: np.stack([np.asarray(layer[path]) for layer in ordered]) for path in ordered[0]}
    )
