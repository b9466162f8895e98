"""The processes of a run, the device mesh, and how arrays are sharded over its axes.

One mesh with three axes: `data` (batches sharded, parameters replicated), `fsdp` (batches and
parameters sharded) and `tensor` (matrix products sharded). Modules name the axes of their arrays
("embed", "mlp", …), and RULES maps names to mesh axes. A size of one switches an axis off, so one
table serves from a laptop to a pod.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.models.layers import Array
from qac_jax.processes import Place


AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# What the axes of arrays are sharded over. The order is the priority for activations: where "batch"
# has taken `fsdp`, an activation's "embed" is replicated, and a parameter's "embed" is sharded.
RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", BATCH_AXES),
    *((name, "tensor") for name in ("vocab", "heads", "mlp")),
    ("embed", "fsdp"),
    *((name, None) for name in ("length", "positions", "types", "layers", "labels")),
)
# The same inside a vmap over the mesh axis `data`.
WITHIN_DATA = (("batch", "fsdp"), *RULES[1:])


def join(place: Place) -> None:
    """Joins the other processes of this run, if there are any."""
    if place.launcher and not jax.distributed.is_initialized():
        # CPU devices of several processes reduce over gloo; other devices ignore it.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if place.launcher == "explicit":
            jax.distributed.initialize(place.coordinator, place.count, place.number)
        else:  # JAX finds the coordinator itself
            jax.distributed.initialize(
                cluster_detection_method="slurm" if place.launcher == "slurm" else None
            )
    if jax.process_count() > 1:
        progress.say(
            f"process {jax.process_index()} of {jax.process_count()}: "
            f"{jax.local_device_count()} of {jax.device_count()} devices"
        )


def is_first() -> bool:
    """Whether this process writes the files that only one process writes."""
    return jax.process_index() == 0


def announce(line: str) -> None:
    """Prints a line, from the first process only."""
    if is_first():
        progress.say(line)


def mesh_sizes(shape: Sequence[int], devices: int) -> tuple[int, int, int]:
    """Sizes of (data, fsdp, tensor); one of them may be -1: the rest of the devices."""
    sizes = tuple(int(size) for size in shape)
    shown = "x".join(map(str, sizes))
    if len(sizes) != len(AXES) or any(s == 0 or s < -1 for s in sizes) or sizes.count(-1) > 1:
        raise UserError(
            f"mesh={shown} is not a valid mesh; give three sizes, data, fsdp, tensor, each 1 or "
            "more, at most one of them -1 (the rest of the devices)"
        )
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and devices % known == 0:
        sizes = tuple(devices // known if size == -1 else size for size in sizes)
    if math.prod(sizes) != devices:
        raise UserError(
            f"mesh={shown} does not fit {devices} device(s); choose data, fsdp and tensor sizes "
            f"whose product is {devices}, for example -1 for one of them"
        )
    return sizes[0], sizes[1], sizes[2]


def shared_by(
    shape: Sequence[int], devices: int, batch: int, microbatch: int = 0, fills: bool = False
) -> int:
    """How many of the devices share a batch (and its microbatches) equally: the most that can.

    Only where data is the rest of the devices (-1); with other meshes it is all of them, and also
    where a batch `fills` up, as long as each device has an example.
    """
    data, fsdp, tensor = mesh_sizes(shape, devices)
    if fills and not 0 < microbatch < batch and data * fsdp <= batch:
        return devices
    if tuple(shape)[0] == -1:
        parts = [batch, microbatch] if 0 < microbatch < batch else [batch]
        fitting = (n for n in range(data, 0, -1) if not any(part % (n * fsdp) for part in parts))
        data = next(fitting, data)
    return data * fsdp * tensor


def mesh_for(shape: Sequence[int], batch: int, microbatch: int = 0, fills: bool = False) -> Mesh:
    """The mesh over as many devices as share a batch equally; all where it is filled up.

    So any batch size runs on any number of devices, with the same figures; the others are idle.
    Processes cannot be left out, so with several the mesh has all devices, and UserError is raised
    for what they cannot share.
    """
    devices = jax.devices()
    used = len(devices)
    if jax.process_count() == 1:
        used = shared_by(shape, len(devices), batch, microbatch, fills)
    if used < len(devices):
        progress.say(
            f"a batch of {batch} examples is shared by {used} of {len(devices)} devices; a "
            f"multiple of {len(devices)} would use all of them"
        )
    mesh = make_mesh(shape, devices[:used])
    check_batch(batch, mesh, fills=fills)
    return mesh


def make_mesh(shape: Sequence[int] = (-1, 1, 1), devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over these devices (default: all).

    Its axes are Auto: the compiler places what the rules leave open (Linen's logical axes do not
    work on the Explicit axes that JAX makes by default).
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = mesh_sizes(shape, len(devices))
    types = (AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(sizes, AXES, types, devices=devices)
    if jax.process_count() > 1 and not _rows_are_contiguous(mesh):
        # The order that suits the network may interleave hosts; each host reads contiguous rows.
        devices.sort(key=lambda d: (d.process_index, d.id))
        mesh = Mesh(np.array(devices).reshape(sizes), AXES, axis_types=types)
    return mesh


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Activations of modules traced inside are sharded on this mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


def shardings(variables: Any, mesh: Mesh) -> Any:
    """Abstract variables (boxed with logical axes, or plain) as the tree of their NamedShardings.

    The tree has the structure of the unboxed variables. Arrays without logical axes are replicated.
    """

    def one(path: Any, leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return replicated(mesh)
        axes: Any = nn.logical_to_mesh_axes(leaf.names, RULES)
        for name, size, axis in zip(leaf.names, leaf.value.shape, axes, strict=True):
            cut = math.prod(mesh.shape[one] for one in np.atleast_1d(axis)) if axis else 1
            if size % cut:
                what = jax.tree_util.keystr(path, simple=True, separator="/")
                raise UserError(
                    f"{what}: its logical axis {name!r} of {size} is not divisible by the mesh "
                    f"axis {axis!r} of {cut}; pad it to {size + cut - size % cut}, or change the "
                    "mesh"
                )
        return NamedSharding(mesh, axes)

    return jax.tree_util.tree_map_with_path(
        one, variables, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The first axis of a batch is sharded over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_ways(mesh: Mesh) -> int:
    """The number of shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def filled(size: int, mesh: Mesh) -> int:
    """The rows of a batch of this many examples that is filled up to equal shards."""
    ways = batch_ways(mesh)
    return -(-size // ways) * ways


def check_batch(size: int, mesh: Mesh, what: str = "batch_size", fills: bool = False) -> None:
    """Raises UserError for a batch that cannot be sharded evenly, nor is filled up."""
    ways = batch_ways(mesh)
    if fills and size >= ways and jax.process_count() == 1:
        return
    if size < 1 or size % ways:
        raise UserError(
            f"{what}={size} is not divisible by the {ways} devices of the mesh axes data x fsdp "
            f"({mesh.shape['data']} x {mesh.shape['fsdp']}); choose a multiple of {ways}, or "
            "change the mesh"
        )


def largest_batch(mesh: Mesh, count: int, fills: bool = False) -> int:
    """The largest batch of at most `count` examples that can be sharded evenly, or is filled up."""
    ways = batch_ways(mesh)
    if count < ways:
        raise UserError(
            f"{count} examples cannot be spread over the {ways} devices of the mesh; give more "
            "examples or fewer devices"
        )
    return count if fills and jax.process_count() == 1 else count - count % ways


def my_part(mesh: Mesh) -> tuple[int, int]:
    """(index, count): the part of every batch that this process reads, of equal parts."""
    ways = batch_ways(mesh)
    indices = batch_sharding(mesh).addressable_devices_indices_map((ways,))
    slices = [index[0] for index in indices.values() if index]
    start = min(each.start or 0 for each in slices)
    size = max(ways if each.stop is None else each.stop for each in slices) - start
    return start // size, ways // size


def whole_spec(
    spec: Mapping[str, tuple[tuple[int, ...], Any]], mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of whole batches, from (shape, dtype) of this process's part."""
    _, parts = my_part(mesh)
    return {
        name: jax.ShapeDtypeStruct((shape[0] * parts, *shape[1:]), dtype)
        for name, (shape, dtype) in spec.items()
    }


def place(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
    """Global arrays over all devices, from this process's rows of a batch.

    Where one process's devices cannot share these equally, copies of the first rows fill the batch
    up: texts like others, whose vectors are finite, so that a gradient of zero stays zero.
    """

    def whole(rows: np.ndarray) -> np.ndarray:
        missing = filled(len(rows), mesh) - len(rows) if jax.process_count() == 1 else 0
        return np.concatenate([rows, rows[:missing]]) if missing else rows

    rows = {name: whole(array) for name, array in batch.items()}
    return jax.make_array_from_process_local_data(batch_sharding(mesh), rows)


def to_host(tree: Any) -> Any:
    """Global arrays as whole numpy arrays, on every process."""
    return multihost_utils.process_allgather(tree, tiled=True)


def _rows_are_contiguous(mesh: Mesh) -> bool:
    """Whether the batch rows of each process are contiguous."""
    per_row = np.array(mesh.devices).reshape(batch_ways(mesh), -1)
    for process in range(jax.process_count()):
        rows = [i for i, row in enumerate(per_row) if any(d.process_index == process for d in row)]
        if rows and rows != list(range(rows[0], rows[-1] + 1)):
            return False
    return True
