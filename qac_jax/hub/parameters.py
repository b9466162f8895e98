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
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath
from flax import traverse_util

from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, nearest, sound
from qac_jax.hub import backbones, weights
from qac_jax.models import backbone
from qac_jax.models.backbone import Architecture
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime


KIND = "parameters"
MODULE, EXPORTED, WHOLE, TOKENIZER = "module.json", "parameters", "objective", "tokenizer"

Nested = dict[str, Any]

_ARRAY = "/.zarray"  # describes an array in what Orbax writes

_NOT_ARCHITECTURE = ("parent", "name", "runtime")


def load(artifact: Artifact, runtime: Runtime | None = None) -> tuple[nn.Module, dict[str, Nested]]:
    """(module, variables) of a finished artefact; arrays are numpy's."""
    runtime = Runtime() if runtime is None else runtime
    with sound(artifact.path / MODULE):
        module, like = (
            build_module(artifact.json(MODULE), how) for how in (runtime, Runtime(scan=True))
        )
        # Without layers one by one, of which a stranger may claim many.
        shapes = jax.tree.map(
            lambda leaf: np.broadcast_to(np.float32(0), leaf.shape),
            backbones.new_parameters(like, abstract=True),
        )
    params = restored(artifact.path / EXPORTED, Runtime())
    if _shapes(weights.looped(shapes)) != _shapes(params):
        raise UserError(f"the parameters in {artifact.path} do not fit its {MODULE}; make it again")
    return module, {"params": weights.scanned(params) if runtime.scan else params}


def _shapes(params: Nested) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in traverse_util.flatten_dict(params, sep="/").items()}


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
    """The parameters that `save` wrote, in the layout that the run-time options ask for.

    TensorStore reads what Orbax wrote with it: of files of a stranger that are not as they should
    be, Orbax's event loops print tracebacks.
    """
    import tensorstore

    folder = os.path.abspath(os.fspath(folder))
    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    with sound(folder):
        keys = tensorstore.KvStore.open(base).result().list().result()
        names = [key.decode().removesuffix(_ARRAY) for key in keys if key.endswith(_ARRAY.encode())]
        params = read_zarr(folder, {n: {**base, "path": f"{n}/"} for n in names})
    weights.check_finite(params, folder)
    params = traverse_util.unflatten_dict(params, sep=".")
    return weights.scanned(params) if runtime.scan else params


def read_zarr(folder: epath.PathLike, stores: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays that TensorStore keeps in a folder, by name."""
    import tensorstore

    held = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    specs = [{"driver": "zarr", "kvstore": store} for store in stores.values()]
    opened = [tensorstore.open(spec, read=True) for spec in specs]
    arrays = [each.result() for each in opened]
    size = sum(array.size * array.dtype.numpy_dtype.itemsize for array in arrays)
    if size > max(100 * held, 16 << 20):
        said = f"{folder} describes {size:,} bytes in files of {held:,}"
        raise UserError(f"{said}; make it again")
    reads = [array.read() for array in arrays]
    return {name: read.result() for name, read in zip(stores, reads, strict=True)}


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
    backbone.check_sizes(types[name], fields, f"{MODULE}: ")
    if unknown := sorted(set(fields) - known):
        raise UserError(
            f"this version of {name} has no field {unknown[0]!r}, as the stored one has"
        )
    return types[name](**fields, **({"runtime": runtime} if "runtime" in known else {}))


def _known() -> Nested:
    """The classes of configurations, and of modules that are more than an architecture's."""
    made = (CrossEncoder, DualEncoder, DualEncoderConfig)
    return {**backbone.registered(), **{cls.__name__: cls for cls in made}}
