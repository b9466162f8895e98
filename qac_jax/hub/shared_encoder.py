"""Encoders that a model folder names instead of holding them: those that come with the package.

A pointer-generator's encoder, which it does not change, is four fifths of its weights. Where it is
`shipped:minilm`, the folder's config.json says so, with a hash of the weights:

    "encoder_from": {"name": "shipped:minilm", "sha256": "…"}

Only what ships may be named, so that a stranger's folder cannot point at files of this machine.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import names, weights


KEY = "encoder_from"
PREFIX = "encoder."


def tensors(raw: Mapping[str, Any], folder: Path, wanted: Iterable[str]) -> weights.Tensors:
    """Those of the named encoder among `wanted`, with the prefix; {} where none is named."""
    said = raw.get(KEY)
    if said is None:
        return {}
    name = said.get("name") if isinstance(said, Mapping) else None
    if not isinstance(name, str) or not name.startswith(names.SHIPPED):
        where = f"{folder / 'config.json'}: {KEY} = {str(said)[:100]}"
        raise UserError(f"{where} is not an encoder that ships, as {names.SHIPPED}minilm does")
    taken = _read(name, wanted)
    if _digest(taken) != said.get("sha256"):
        raise UserError(
            f"{folder} was trained with another {name} than the one here; install the version of "
            "qac_jax that it was made with"
        )
    return taken


def without(stored: weights.Tensors, name: str) -> tuple[weights.Tensors, dict[str, Any]]:
    """(tensors to store without those of this encoder, what config.json says of them)."""
    if not name.startswith(names.SHIPPED):
        raise UserError(f"{name!r} does not ship; expected a name such as {names.SHIPPED}minilm")
    own = {key: value for key, value in stored.items() if key.startswith(PREFIX)}
    theirs = _read(name, own)
    # Those to store may be in half precision already.
    if not own.keys() == theirs.keys() or not all(
        np.array_equal(theirs[key].astype(value.dtype), value) for key, value in own.items()
    ):
        raise UserError(f"it is not {name}, so the encoder was trained; store it too")
    rest = {key: value for key, value in stored.items() if key not in own}
    return rest, {KEY: {"name": name, "sha256": _digest(theirs)}}


def _read(name: str, wanted: Iterable[str]) -> weights.Tensors:
    there = weights.read_folder(names.folder(name))
    chosen = {key: key.removeprefix(PREFIX) for key in wanted if key.startswith(PREFIX)}
    return {key: there[theirs] for key, theirs in chosen.items() if theirs in there}


def _digest(taken: weights.Tensors) -> str:
    digest = hashlib.sha256()
    for key in sorted(taken):
        digest.update(f"{key} {taken[key].shape}\n".encode())
        digest.update(np.ascontiguousarray(taken[key], np.float32).tobytes())
    return digest.hexdigest()
