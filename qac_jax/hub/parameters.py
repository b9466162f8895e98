"""Trained parameters on disk: artefacts of kind "parameters".

In the folder:

- `module.json`: the module that the parameters belong to, its class and configuration;
- `parameters/`: an Orbax folder of nested dicts of plain arrays, layers as a loop;
- `objective/`: where training had more (heads): all of its parameters, in the same way;
- `tokenizer/`: in Hugging Face's layout.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath
from flax import traverse_util

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, nearest, sound
from qac_jax.hub import weights
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime


KIND = "parameters"
MODULE, EXPORTED, WHOLE, TOKENIZER = "module.json", "parameters", "objective", "tokenizer"

Nested = dict[str, Any]

_NOT_ARCHITECTURE = ("parent", "name", "runtime")


def load(artifact: Artifact, runtime: Runtime | None = None) -> tuple[nn.Module, dict[str, Nested]]:
    """(module, variables) of a finished artefact; arrays are numpy's."""
    runtime = Runtime() if runtime is None else runtime
    with sound(artifact.path / MODULE):
        module = build_module(artifact.json(MODULE), runtime)
    return module, {"params": restored(artifact.path / EXPORTED, runtime)}


def load_whole(artifact: Artifact, runtime: Runtime | None = None) -> Nested:
    """All parameters that training ended with: the exported ones, and heads where there were."""
    has_more = any(name.startswith(f"{WHOLE}/") for name in artifact.files)
    folder = artifact.path / (WHOLE if has_more else EXPORTED)
    return restored(folder, Runtime() if runtime is None else runtime)


def save(folder: epath.PathLike, params: Any) -> str:
    """Writes a tree of host arrays, layers as a loop; returns the identity of the arrays."""
    params = weights.looped(params)
    weights.check_finite(traverse_util.flatten_dict(params, sep="/"), folder)
    with _checkpointer() as checkpointer:
        checkpointer.save(os.path.abspath(os.fspath(folder)), params, force=True)
    return identity(params)


def restored(folder: epath.PathLike, runtime: Runtime) -> Nested:
    """The parameters that `save` wrote, in the layout that the run-time options ask for."""
    import orbax.checkpoint as ocp

    folder = os.path.abspath(os.fspath(folder))
    with sound(folder), _checkpointer() as checkpointer:
        tree = checkpointer.metadata(folder).item_metadata.tree
        to_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        params = checkpointer.restore(folder, restore_args=to_numpy)
    weights.check_finite(traverse_util.flatten_dict(params, sep="/"), folder)
    return weights.scanned(params) if runtime.scan else params


def _checkpointer() -> Any:
    """Orbax for this process alone: where there are several, only the first one writes."""
    import orbax.checkpoint as ocp

    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process_{me}"
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


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


def describe_module(module: Any) -> Nested:
    """A module (or a configuration inside) as JSON, without how it is computed."""
    described: Nested = {"class": type(module).__name__}
    known = _known()
    if described["class"] not in known and backbone.of_module(module) is None:
        raise UserError(
            f"a {described['class']} cannot be stored; {nearest(described['class'], known)}"
        )
    for field in dataclasses.fields(module):
        if field.name not in _NOT_ARCHITECTURE:
            value = getattr(module, field.name)
            nested = dataclasses.is_dataclass(value)
            described[field.name] = describe_module(value) if nested else value
    return described


def build_module(record: Mapping[str, Any], runtime: Runtime) -> Any:
    """The inverse of `describe_module`."""
    fields = {
        name: build_module(value, runtime) if isinstance(value, Mapping) else value
        for name, value in record.items()
        if name != "class"
    }
    # A network that is nothing but an architecture's is known by its configuration.
    if fields.keys() == {"config"} and isinstance(fields["config"], Architecture):
        return fields["config"].build(runtime)
    types, name = _known(), str(record.get("class"))
    if name not in types:
        raise UserError(
            f"the stored module is a {name!r}, which this version does not know; "
            + nearest(name, types)
        )
    known = {field.name for field in dataclasses.fields(types[name])}
    if unknown := sorted(set(fields) - known):
        raise UserError(
            f"this version of {name} has no field {unknown[0]!r}, as the stored one has"
        )
    return types[name](**fields, **({"runtime": runtime} if "runtime" in known else {}))


def _known() -> Nested:
    """The classes of configurations, and of modules that are more than an architecture's."""
    made = (CrossEncoder, DualEncoder, DualEncoderConfig)
    return {**backbone.registered(), **{cls.__name__: cls for cls in made}}
