"""One optimiser step as a pure function from state and batch to the next state, and its programs.

`prepare` runs on the whole batch. A splittable objective then accumulates over microbatches (their
losses add up, see qac_jax.objectives.objective); any other gets the whole batch and encodes it in
chunks itself.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qac_jax import hardware
from qac_jax.errors import UserError
from qac_jax.models.layers import Array
from qac_jax.objectives import chunked
from qac_jax.objectives.objective import Objective, Variables
from qac_jax.progress import human
from qac_jax.training import mesh as meshes
from qac_jax.training.mesh import announce
from qac_jax.training.optimizers import held


Metrics = dict[str, Array]
Scale = dict[str, Array]
# Room for a share of the padded tokens for each length that texts are padded to.
Room = tuple[tuple[int, float], ...]

# With the least scale gradients are what they are: one that is not finite then is no overflow of
# the scale's making.
LEAST, LARGEST = 1.0, 2.0**24
# The name of the scale among a step's metrics.
LOSS_SCALE = "loss_scale"
_FLOAT = 4  # bytes


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Dynamic loss scaling for training in float16 (Micikevicius et al., 2018).

    float16 has no number between 0 and 6e-8, where most gradients of a mean over many tokens lie,
    nor beyond 65504. So the loss is multiplied by a power of two before the backward pass, and the
    fp32 gradients are divided by it. A step whose gradient is not finite is skipped and halves the
    scale; `period` finite steps in a row double it, as in PyTorch's GradScaler. bfloat16 has fp32's
    range and needs none of this.
    """

    initial: float = 2.0**16
    period: int = 2000

    def start(self) -> Scale:
        """The scale of step 0, and the number of finite steps since it last changed."""
        return {"value": jnp.float32(self.initial), "good": jnp.zeros((), jnp.int32)}

    def after(self, scale: Scale, finite: Array) -> Scale:
        value, good = scale["value"], scale["good"] + 1
        grown = jnp.where(good >= self.period, jnp.minimum(2 * value, LARGEST), value)
        return {
            "value": jnp.where(finite, grown, jnp.maximum(value / 2, LEAST)),
            "good": jnp.where(finite & (good < self.period), good, 0),
        }


def overflows(loss: Any, norm: Any, scale: Any) -> Any:
    """Whether a gradient with this norm is not finite because of the scale; also of numbers."""
    return jnp.isfinite(loss) & ~jnp.isfinite(norm) & (scale > LEAST)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a step changes, parameters unboxed (or its shapes, or its shardings)."""

    step: Any  # optimiser steps done
    variables: Variables
    opt_state: Any
    skipped: Any  # steps whose loss or gradient was not finite, whatever the scale of the loss
    scale: Any = None  # a Scale in float16, which alone needs one

    @property
    def params(self) -> Any:
        return self.variables["params"]


@dataclasses.dataclass(frozen=True)
class Engine:
    """The pure functions of a run: objective, optimiser and the settings of a step."""

    objective: Objective
    tx: optax.GradientTransformation
    mesh: Mesh
    seed: int = 0
    microbatch: int = 0  # examples in one pass; 0: the whole batch
    max_skips: int = 0  # steps whose loss is not finite that may be skipped
    frozen: tuple[str, ...] = ()  # patterns of parameters without a gradient (`Optimizer.frozen`)
    scaling: Scaling = Scaling()  # of the loss, in float16

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, and steps whose gradient overflows are skipped."""
        return self.objective.runtime.dtype == "float16"

    def new(self, key: Array) -> State:
        return self.start(nn.unbox(self.objective.init(key)))

    def start(self, variables: Variables) -> State:
        """A state at step 0 with these variables."""
        zero, scale = jnp.zeros((), jnp.int32), self.scaling.start() if self.scales else None
        return State(zero, variables, self.tx.init(variables["params"]), zero, scale)

    @functools.cached_property
    def shardings(self) -> State:
        boxed = jax.eval_shape(self.objective.init, jax.random.key(0))
        variables, whole = meshes.shardings(boxed, self.mesh), meshes.replicated(self.mesh)
        moments = self.abstract.opt_state, variables["params"]
        return State(
            step=whole,
            variables=variables,
            opt_state=optax.tree.map_params(
                self.tx, lambda _, own: own, *moments, transform_non_params=lambda _: whole
            ),
            skipped=whole,
            scale=jax.tree.map(lambda _: whole, self.abstract.scale),
        )

    @functools.cached_property
    def abstract(self) -> State:
        return jax.eval_shape(self.new, jax.random.key(0))

    def create(self, params: Mapping[str, Any] | None = None) -> State:
        """The state at step 0, initialised sharded; `params` replace some or all parameters."""
        shardings, flatten = self.shardings, traverse_util.flatten_dict
        places = flatten(shardings.params)
        loaded = {n: jax.device_put(x, places[n]) for n, x in flatten(params or {}).items()}

        def begin(key: Array, loaded: Any) -> State:
            variables = nn.unbox(self.objective.init(key))
            if loaded:
                whole = {**flatten(variables["params"]), **loaded}
                variables["params"] = traverse_util.unflatten_dict(whole)
                variables |= self.objective.initial_state(variables["params"])
            return self.start(variables)

        key = jax.random.fold_in(jax.random.key(self.seed), 0)
        with meshes.use(self.mesh):
            return jax.jit(begin, out_shardings=shardings)(key, loaded)

    def step(self, state: State, batch: Any) -> tuple[State, Metrics]:
        """One optimiser step. The metrics are scalars."""
        prepare_key, loss_key = jax.random.split(
            jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), 1), state.step)
        )
        with jax.named_scope("prepare"):
            batch = self.objective.prepare(batch, prepare_key)
        scale: Any = state.scale["value"] if self.scales else None
        loss, metrics, grads, collections = self.gradients(state.variables, batch, loss_key, scale)
        with jax.named_scope("optimizer"):
            updates, opt_state = self.tx.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        lost = ~finite
        if self.scales:
            lost &= ~overflows(loss, norm, scale)
            metrics = {**metrics, LOSS_SCALE: scale}
        new = State(
            step=state.step + 1,
            variables={**state.variables, **collections, "params": params},
            opt_state=opt_state,
            skipped=state.skipped + lost,
            scale=self.scaling.after(state.scale, finite) if self.scales else None,
        )
        if self.max_skips or self.scales:
            kept = dataclasses.replace(state, step=new.step, skipped=new.skipped, scale=new.scale)
            new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, kept)
        return new, {"loss": loss, **metrics, "grad_norm": norm}

    def gradients(
        self, variables: Variables, batch: Any, key: Array, scale: Array | None = None
    ) -> tuple[Array, Metrics, Any, Variables]:
        """(loss, metrics, gradients, new collections) of a prepared batch; `scale` multiplies the
        loss of the backward pass only."""
        rest = {name: value for name, value in variables.items() if name != "params"}

        def loss_of(params: Any, part: Any) -> tuple[Array, Any]:
            params = held(self.frozen, params)  # or their backward pass would be computed
            loss, aux = self.objective.loss({**rest, "params": params}, part, key, True)
            return loss if scale is None else loss * scale, aux

        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        params = variables["params"]
        size = jax.tree.leaves(batch)[0].shape[0]
        if not self.microbatch or self.microbatch >= size or not self.objective.splittable:
            (loss, metrics), grads = differentiate(params, batch)
            collections = metrics.pop("state", {})
        else:
            loss, metrics, grads, collections = self._accumulate(differentiate, params, batch, size)
        if scale is not None:  # exact: powers of two
            loss, grads = jax.tree.map(lambda x: x / scale, (loss, grads))
        return loss, metrics, grads, collections

    def _accumulate(
        self, differentiate: Any, params: Any, batch: Any, size: int
    ) -> tuple[Array, Metrics, Any, Variables]:
        """Sums over microbatches, which add up.

        Each row of devices along the mesh axis `data` sums its own gradients (a leading axis that
        vmap shards over `data`); they are reduced once after the loop, not per microbatch. Kernels
        are cast to half precision before it; their gradients are added in full.
        """
        ways = self.mesh.shape["data"]
        count = size // self.microbatch

        def cut(x: Array) -> Array:  # [microbatches, data, rows, …]
            x = chunked.split(x, count)
            x = x.reshape(count, ways, self.microbatch // ways, *x.shape[2:])
            return self._at(x, PartitionSpec(None, "data", "fsdp"))

        cast = cast_kernels(params, self.objective.runtime.compute_dtype)

        def own(part: Any) -> Any:
            if ways == 1:
                sums = differentiate(cast, jax.tree.map(lambda x: x[0], part))
                values, grads = jax.tree.map(lambda x: x[None], sums)
            else:
                with nn.logical_axis_rules(meshes.WITHIN_DATA):
                    each = jax.vmap(differentiate, (None, 0), spmd_axis_name="data")
                    values, grads = each(cast, part)
            return values, jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            return keep(jax.tree.map(jnp.add, sums, own(part))), None

        specs = jax.tree.map(lambda own: PartitionSpec("data", *own.spec), self.shardings.params)

        def keep(sums: Any) -> Any:  # gradients sharded as parameters, after the leading axis
            return sums[0], jax.tree.map(self._at, sums[1], specs)

        parts = jax.tree.map(cut, batch)
        shapes = jax.eval_shape(own, jax.tree.map(lambda x: x[0], parts))
        if "state" in shapes[0][1]:
            raise TypeError(
                f"{type(self.objective).__name__} is splittable and has state: state advances "
                "once a step, so such an objective must not be splittable"
            )
        zeros = keep(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
        sums, _ = jax.lax.scan(add, zeros, parts)
        (loss, metrics), grads = jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)
        return loss, metrics, grads, {}

    def pieces(self, size: int) -> int:
        """In how many strided parts of equal size a batch is computed, one after the other."""
        chunk = self.microbatch if self.objective.splittable else self.objective.chunk
        return size // chunk if 0 < chunk < size else 1

    def measure(self, variables: Variables, batch: Any) -> Metrics:
        """The loss and metrics of a validation batch: no dropout, always the same masks."""
        prepare_key, loss_key = jax.random.split(jax.random.fold_in(jax.random.key(self.seed), 2))
        batch = self.objective.prepare(batch, prepare_key)
        loss, aux = self.objective.loss(variables, batch, loss_key, False)
        aux.pop("state", None)
        return {"loss": loss, **aux}

    def compile_step(self, batch: Any, room: Room = (), kept: int = 0) -> jax.stages.Compiled:
        """The compiled step for batches of these shapes, as `mesh.place` fills them up; it consumes
        (donates) its state. `room` and `kept`: see `Objective.fitted`."""
        self.check(jax.tree.leaves(batch)[0].shape[0])
        engine, batch = self._fitted(batch, room, kept)
        step = jax.jit(
            engine.step,
            in_shardings=(self.shardings, meshes.batch_sharding(self.mesh)),
            out_shardings=(self.shardings, meshes.replicated(self.mesh)),
            donate_argnums=0,
        )
        with meshes.use(self.mesh):
            return step.lower(self.abstract, batch).compile()

    def compile_measure(self, batch: Any) -> jax.stages.Compiled:
        size = jax.tree.leaves(batch)[0].shape[0]
        meshes.check_batch(size, self.mesh, "validation batch_size", self.objective.fills)
        engine, batch = self._fitted(batch)
        measure = jax.jit(
            engine.measure,
            in_shardings=(self.shardings.variables, meshes.batch_sharding(self.mesh)),
            out_shardings=meshes.replicated(self.mesh),
        )
        with meshes.use(self.mesh):
            return measure.lower(self.abstract.variables, batch).compile()

    def check(self, batch_size: int) -> None:
        """Raises UserError for batch sizes that do not fit the mesh or the microbatch."""
        whole = not 0 < (self.microbatch or self.objective.chunk) < batch_size
        meshes.check_batch(batch_size, self.mesh, fills=self.objective.fills and whole)
        if 0 < self.microbatch < batch_size:
            if batch_size % self.microbatch:
                raise UserError(
                    f"microbatch={self.microbatch} does not divide batch_size={batch_size}; "
                    "choose a divisor of it"
                )
            meshes.check_batch(self.microbatch, self.mesh, "microbatch")

    def _fitted(self, batch: Any, room: Room = (), kept: int = 0) -> tuple[Self, Any]:
        """The engine of one program, and the shapes of batches filled up to equal shards."""
        size = jax.tree.leaves(batch)[0].shape[0]
        rows = meshes.filled(size, self.mesh)
        examples = size if rows != size else 0
        objective = self.objective.fitted(room=room, kept=kept, examples=examples)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), batch)
        return dataclasses.replace(self, objective=objective), shapes

    def _at(self, x: Array, spec: PartitionSpec) -> Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def programs(engine: Engine, spec: Any, pack: bool = False) -> Callable[[Any], Any]:
    """A function to the compiled step for this host's rows of a batch: one for all batches, or with
    `pack` one for each room.

    The rows of texts without padding (models/packing.py) have a fixed size in a program. It is
    chosen from the batch alone, so a run is a function of its settings and its data as before,
    resumed or not: the share of the padded tokens that the fullest row needs, rounded up to one of
    a few levels. A program is compiled when a batch first needs it.
    """
    made = functools.cache(lambda room: compiled(engine, spec, room))
    if not pack:
        made(())
    return lambda batch: made(room_of(engine, batch) if pack else ())


def compiled(engine: Engine, spec: Any, room: Room = ()) -> jax.stages.Compiled:
    """The step, compiled before anything is computed: with as many chunks that keep their
    activations as there is memory for. Raises UserError where it does not fit at all."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in engine.mesh.shape.items())
    device = engine.mesh.devices.flat[0]
    announce(f"compiling the step for {engine.mesh.size} x {device.device_kind} ({sizes})")
    began, memory = time.monotonic(), _memory(device)
    kept = 0 if memory is None else chunks_kept(engine, spec, room, 0.95 * memory)
    while True:
        program = engine.compile_step(spec, room, kept)
        needed = memory_of(program)
        if not kept or memory is None or needed.get("peak", 0) <= memory:
            break
        kept //= 2
    if memory is not None and needed.get("peak", 0) > memory:
        raise UserError(
            f"this training needs {needed['peak'] / 2**30:.0f} GiB of memory on each of "
            f"{engine.mesh.size} {device.device_kind}, which have {memory / 2**30:.0f}; give a "
            "smaller --microbatch, set Runtime.remat='layer', cut the parameters over devices "
            "(--mesh=1,-1,1), or use more or larger ones"
        )
    parameters = count_parameters(engine.abstract.params)
    shown = ", ".join(f"{name} {human(size, 'B')}" for name, size in needed.items())
    announce(f"parameters {human(parameters)}; memory per device: {shown}")
    announce(f"compiled in {time.monotonic() - began:.1f} s")
    return program


def memory_of(program: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that a device needs: at the peak, for the arguments, and for temporary arrays."""
    stats: Any = program.memory_analysis()
    if stats is None:  # a backend without this analysis
        return {}
    arguments, temporary = stats.argument_size_in_bytes, stats.temp_size_in_bytes
    peak = arguments + temporary + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return {"peak": peak, "arguments": arguments, "temporary": temporary}


def chunks_kept(engine: Engine, batch: Any, room: Room, memory: float) -> int:
    """Of how many chunks a device of this memory keeps the activations for the backward pass; the
    others are encoded twice."""
    chunk, size = engine.objective.chunk, jax.tree.leaves(batch)[0].shape[0]
    if not 0 < chunk < size:
        return 0
    count = size // chunk
    whole = dataclasses.replace(engine.objective.fitted(room=room), chunk=0)
    of_chunk = activation_bytes(whole, batch) / count
    # Parameters, gradients and two moments.
    state = 4 * _FLOAT * count_parameters(engine.abstract.params) * engine.mesh.shape["data"]
    left = int((memory * engine.mesh.size - state) / of_chunk)
    kept = count if left >= count else max(0, left - 1)  # one is in the works
    announce(f"{kept} of {count} chunks of {chunk} examples keep their activations")
    return kept


def _memory(device: jax.Device) -> float | None:
    """The memory that a program may use on a device; None where it is not known."""
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except jax.errors.JaxRuntimeError:  # a device that is only described
        limit = None
    known = hardware.find(device.device_kind)
    return limit or (known.memory_bytes if known else None)


def model_flops(objective: Objective, spec: Any) -> float:
    """FLOPs of a training step over padded texts of these shapes: forward and backward, without
    what is computed a second time to save memory."""
    counted, variables = plain(objective)

    def loss(params: Any, rest: Variables, batch: Any, key: Array) -> Array:
        return counted.loss({**rest, "params": params}, counted.prepare(batch, key), key, True)[0]

    params = variables.pop("params")
    return hardware.flops_of(jax.grad(loss), params, variables, spec, jax.random.key(0))


def activation_bytes(objective: Objective, spec: Any) -> float:
    """About what a GPU keeps for the backward pass of a batch of these shapes.

    XLA computes cheap operations again within its fusions, and keeps about half of what JAX saves.
    """
    variables = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))

    def saved(variables: Variables, batch: Any, key: Array) -> Any:
        rest, batch = dict(variables), objective.prepare(batch, key)
        params = rest.pop("params")

        def loss(params: Any) -> Array:
            return objective.loss({**rest, "params": params}, batch, key, True)[0]

        return jax.vjp(loss, params)[1]

    found = jax.eval_shape(saved, variables, spec, jax.random.key(0))
    return 0.54 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(found))


def plain(objective: Objective) -> tuple[Any, Variables]:
    """The objective without what saves memory, and the shapes of its variables, which no kernel
    changes, as plans are made anywhere."""
    runtime = dataclasses.replace(
        objective.runtime, attention="xla", remat="none", packed=(), kept=0, scan=True
    )
    model = objective.model.clone(runtime=runtime)
    made = dataclasses.replace(objective, model=model, chunk=0)
    return made, nn.unbox(jax.eval_shape(made.init, jax.random.key(0)))


def count_parameters(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def room_of(engine: Engine, batch: Mapping[str, np.ndarray]) -> Room:
    """The room that a batch needs, the same on every host."""
    hosts = jax.process_count()
    count = engine.pieces(hosts * next(iter(batch.values())).shape[0])
    shares = shares_of(batch, count, max(1, meshes.batch_ways(engine.mesh) // hosts))
    if hosts > 1:
        values = np.array([share for _, share in shares], np.float32)
        most = np.max(multihost_utils.process_allgather(values), axis=0).tolist()
        shares = tuple((length, share) for (length, _), share in zip(shares, most, strict=True))
    return tuple((length, share) for length, share in shares if share < 1)


def shares_of(batch: Mapping[str, np.ndarray], count: int, parts: int) -> Room:
    """The share that each length needs where a batch is computed in `count` strided pieces, each
    cut into `parts` rows; 1 where that is all of it."""
    mean: dict[int, float] = {}  # tokens a text of the fullest row
    level: dict[int, int] = {}
    for name, ids in batch.items():
        if (sizes := batch.get(f"{name}_length")) is None:
            continue
        pieces = np.swapaxes(sizes.reshape(len(sizes) // count, count, -1), 0, 1)
        rows = pieces.reshape(count * parts, -1)
        length, texts = ids.shape[-1], rows.shape[1]
        mean[length] = max(mean.get(length, 0.0), float(rows.sum(axis=1).max() / texts))
        # The more texts a row holds, the less the sums of their lengths differ.
        level[length] = min(
            level.get(length, 64), 16 if texts < 128 else 32 if texts < 1024 else 64
        )
    # An objective may pad short texts further: where there is room for its own texts of a length,
    # there is room for those of shorter ones too.
    return tuple(
        (
            length,
            min(1.0, math.ceil(max(mean[n] for n in mean if n <= length) / length * steps) / steps),
        )
        for length, steps in sorted(level.items())
    )


def cast_kernels(params: Any, dtype: Any) -> Any:
    """The parameters with the kernels of dense layers in half precision, where that is computed in.

    Only these: norms and biases of predictions are computed in full, and the gradient of word
    embeddings is a sum over all places of a word, which half precision loses and a GPU does slowly.
    """
    if jnp.dtype(dtype).itemsize > 2:
        return params

    def cast(path: Any, leaf: Any) -> Any:
        return leaf.astype(dtype) if path[-1] == jax.tree_util.DictKey("kernel") else leaf

    return jax.tree_util.tree_map_with_path(cast, params)
