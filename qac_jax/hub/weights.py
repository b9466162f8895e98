"""Files of named tensors: safetensors (one file or shards) and PyTorch `.bin`, read and written.

Everything comes back as numpy; half-precision floats come back as float32, because that is what
parameters are here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from qac_jax.errors import UserError
from qac_jax.hub import torch_files


SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
Tensors = dict[str, np.ndarray]


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
    else:
        tensors = torch_files.read(path)
    return {name: _full_precision(tensor) for name, tensor in tensors.items()}


def _full_precision(tensor: np.ndarray) -> np.ndarray:
    return tensor.astype(np.float32) if tensor.dtype in _HALF else tensor


def read_folder(folder: str | os.PathLike[str]) -> Tensors:
    """A model folder's tensors; safetensors are preferred to `.bin`, whole files to shards."""
    folder = Path(folder)
    for name in (SAFETENSORS, PYTORCH):
        if (folder / name).is_file():
            return read_file(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_shards(folder, f"{name}.index.json")
    raise UserError(
        f"{folder} holds no weights; expected {SAFETENSORS} or {PYTORCH} (TensorFlow and Flax "
        "weight files are not read)"
    )


def count_of_layers(folder: str | os.PathLike[str]) -> int | None:
    """The parameters of a folder's model but its embeddings, from what safetensors say of
    themselves; None where that is not known."""
    files = sorted(Path(folder).glob("*.safetensors"))
    total = 0
    try:
        for file in files:
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
    try:
        names: Mapping[str, str] = json.loads((folder / index).read_text("utf-8"))["weight_map"]
        files = sorted({os.fspath(name) for name in names.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{folder / index} is not a valid index of weight shards") from None
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
        raise UserError(
            f"float16 holds numbers up to 65504, and a weight is {np.abs(tensor).max():.4g}; "
            "keep float32"
        )
    return small


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> None:
    """A safetensors file as transformers reads it; equal tensors give equal bytes."""
    whole = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    safetensors.numpy.save_file(whole, os.fspath(path), metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)  # the library lets nobody else read what it writes
