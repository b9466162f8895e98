"""The files of a model folder: JSON, and named tensors in safetensors or PyTorch's `.bin`.

Tensors come back as numpy; half-precision floats come back as float32, because that is what
parameters are here. One table of names (models/backbone.py) makes parameters of tensors and tensors
of parameters, so that a round trip gives back the same bytes. Tables speak of layers as a loop;
`scanned` and `looped` turn trees of parameters into and out of the stacked form.
"""

import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from qac_jax import errors
from qac_jax.errors import UserError
from qac_jax.hub import torch_files
from qac_jax.models.backbone import Table


SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
Tensors = dict[str, np.ndarray]


sound = functools.partial(errors.sound, remedy="copy the folder again")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence about why there is none."""
    if not path.is_file():
        raise UserError(f"there is no {path.name} in {path.parent}; expected a model folder")
    with sound(path):
        content = json.loads(path.read_text("utf-8"))
        if not isinstance(content, dict):
            raise TypeError("no JSON object")
        return content


def write_json(path: Path, content: Any) -> None:
    """JSON as Hugging Face writes it."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def read_file(path: str | os.PathLike[str]) -> Tensors:
    """Tensors of one file, by its ending: `.safetensors`, or PyTorch's `.bin` / `.pt`."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    if path.suffix == ".safetensors":
        try:
            tensors = safetensors.numpy.load_file(path)
        except safetensors.SafetensorError as error:
            raise UserError(f"{path} is not a whole safetensors file ({error})") from None
        except (KeyError, AttributeError) as error:
            why = f"{path} holds tensors of a type that is not read ({error})"
            raise UserError(f"{why}; save the model in float32, float16 or bfloat16") from None
    else:
        tensors = torch_files.read(path)
    return {n: t.astype(np.float32) if t.dtype in _HALF else t for n, t in tensors.items()}


def read_folder(folder: str | os.PathLike[str]) -> Tensors:
    """A model folder's tensors; safetensors are preferred to `.bin`, whole files to shards."""
    folder = Path(folder)
    for name in (SAFETENSORS, PYTORCH):
        if (folder / name).is_file():
            return read_file(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder, f"{name}.index.json")
    raise UserError(f"{folder} holds no weights; expected {SAFETENSORS} or {PYTORCH}")


def count_of_layers(folder: str | os.PathLike[str]) -> int | None:
    """The parameters of a folder's model but its embeddings, where safetensors say it."""
    total = 0
    try:
        for file in Path(folder).glob("*.safetensors"):
            with safetensors.safe_open(file, "np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (it is no dictionary)
                    if not is_embedding(name):
                        total += math.prod(tensors.get_slice(name).get_shape())
    except (OSError, safetensors.SafetensorError):
        return None
    return total or None


def is_embedding(name: str) -> bool:
    """Whether a parameter is a row for each word or place, and no matrix of a layer."""
    return "embed" in name.lower() or "shared" in name.lower()


def _read_shards(folder: Path, index: str) -> Tensors:
    with sound(folder / index):
        names: Mapping[str, str] = read_json(folder / index)["weight_map"]
        files = sorted({os.fspath(name) for name in names.values()})
    tensors: Tensors = {}
    for file in files:
        if Path(file).name != file:
            raise UserError(f"{folder / index} names {file!r}, which lies outside of the folder")
        tensors.update(read_file(folder / file))
    if missing := sorted(set(names) - set(tensors)):
        raise UserError(f"the shards of {folder} lack {missing[0]}, which {index} promises")
    return tensors


def halved(tensor: np.ndarray) -> np.ndarray:
    """A float32 tensor in float16, for files of half the size; others as they are."""
    if tensor.dtype != np.float32:
        return tensor
    with np.errstate(over="ignore"):
        small = tensor.astype(np.float16)
    if not np.isfinite(small).all() and np.isfinite(tensor).all():
        raise UserError("float16 holds numbers up to 65504, which a weight exceeds; keep float32")
    return small


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> None:
    """A safetensors file as transformers reads it; equal tensors give equal bytes."""
    whole = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    safetensors.numpy.save_file(whole, os.fspath(path), metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)  # the library lets nobody else read what it writes


def check_finite(tensors: Mapping[str, np.ndarray], source: object) -> None:
    """Raises UserError where a model holds NaN or infinity: all that it computes would be that."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind not in "biuOSU" and not np.isfinite(tensor).all():
            why = f"{name} of {source} holds numbers that are not finite (NaN or infinity)"
            raise UserError(f"{why}; take an earlier checkpoint")


_PARTS = 3


def parameters(table: Table, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
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


def tensors_of(table: Table, params: Mapping[str, Any]) -> Tensors:
    """The tensors of a table, from a parameter tree that holds exactly its paths."""
    flat = traverse_util.flatten_dict(params, sep="/")
    if flat.keys() != table.keys():
        odd = min(flat.keys() ^ table.keys())
        why = "not one of its parameters" if odd in flat else "missing"
        raise UserError(f"the parameters do not fit the module: {odd} is {why}")
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

    def is_stack(name: str, branch: Any) -> bool:  # and no module that has one beside other parts
        return name == "layers" and not any(n == "layers" or n.startswith("stack_") for n in branch)

    return {
        name: change(branch) if is_stack(name, branch) else _map_stacks(branch, change)
        for name, branch in tree.items()
    }


def _unstack(layers: Mapping[str, Any]) -> dict[str, Any]:
    host = jax.tree.map(np.asarray, dict(layers))
    if "0" in host:
        return host
    count = len(jax.tree.leaves(host)[0])
    return {str(i): jax.tree.map(lambda leaf, i=i: leaf[i], host) for i in range(count)}


def _stack(layers: Mapping[str, Any]) -> Any:
    ordered = [jax.tree.map(np.asarray, layers[str(i)]) for i in range(len(layers))]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *ordered)
