"""One optimiser step as a pure function from state and batch to the next state.

`prepare` runs on the whole batch. A splittable objective then accumulates over microbatches (their
losses add up, see qac_jax.objectives.objective); any other gets the whole batch and encodes it in
chunks itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qac_jax.errors import UserError
from qac_jax.models import flops
from qac_jax.objectives import chunked
from qac_jax.objectives.masking import Vocabulary
from qac_jax.objectives.objective import Objective, Variables, split_aux
from qac_jax.training import mesh as meshes
from qac_jax.training import scaling
from qac_jax.training.optimizers import held
from qac_jax.training.scaling import Scaling


Metrics = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a step changes, parameters unboxed (or its shapes, or its shardings)."""

    step: Any  # optimiser steps done
    variables: Variables
    opt_state: Any
    ema: Any  # EMA of the parameters; {} when it is off
    skipped: Any  # steps whose loss or gradient was not finite, whatever the scale of the loss
    scale: Any = None  # scaling.Scale in float16, which alone needs one

    @property
    def params(self) -> Any:
        return self.variables["params"]


@dataclasses.dataclass(frozen=True)
class Engine:
    """The pure functions of a run: objective, optimiser and the settings of a step."""

    objective: Objective
    tx: optax.GradientTransformation
    mesh: Mesh
    rules: meshes.Rules
    seed: int = 0
    microbatch: int = 0  # examples in one pass; 0: the whole batch
    ema: float = 0.0  # decay of the EMA of parameters; 0: off
    max_skips: int = 0  # steps whose loss is not finite that may be skipped
    frozen: tuple[str, ...] = ()  # patterns of parameters without a gradient (`Optimizer.frozen`)
    scaling: Scaling = Scaling()  # of the loss, in float16

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, and steps whose gradient overflows are skipped."""
        return self.objective.runtime.dtype == "float16"

    def new(self, key: jax.Array) -> State:
        """A fresh state, parameters unboxed."""
        variables = nn.unbox(self.objective.init(key))
        return self.start(variables)

    def start(self, variables: Variables) -> State:
        """A state at step 0 with these variables."""
        params = variables["params"]
        zero = jnp.zeros((), jnp.int32)
        return State(
            step=zero,
            variables=variables,
            opt_state=self.tx.init(params),
            ema=jax.tree.map(jnp.copy, params) if self.ema else {},
            skipped=zero,
            scale=self.scaling.start() if self.scales else None,
        )

    @functools.cached_property
    def shardings(self) -> State:
        """The sharding of every leaf of the state."""
        key = jax.random.key(0)
        boxed = jax.eval_shape(self.objective.init, key)
        variables = meshes.shardings(boxed, self.mesh, self.rules)
        abstract = self.abstract
        whole = meshes.replicated(self.mesh)
        return State(
            step=whole,
            variables=variables,
            opt_state=meshes.like_parameters(
                abstract.opt_state, abstract.params, variables["params"], self.mesh
            ),
            ema=variables["params"] if self.ema else {},
            skipped=whole,
            scale=jax.tree.map(lambda _: whole, abstract.scale),
        )

    @functools.cached_property
    def abstract(self) -> State:
        """Shapes and types of the state, without computing it."""
        return jax.eval_shape(self.new, jax.random.key(0))

    def create(self, params: Mapping[str, Any] | None = None) -> State:
        """The state at step 0, initialised sharded; `params` replace some or all parameters."""
        shardings = self.shardings
        loaded = dict(params or {})
        loaded = jax.tree.map(jax.device_put, loaded, _part(shardings.params, loaded))

        def begin(key: jax.Array, loaded: Any) -> State:
            variables = nn.unbox(self.objective.init(key))
            if loaded:
                variables["params"] = _replaced(variables["params"], loaded)
                variables |= self.objective.initial_state(variables["params"])
            return self.start(variables)

        key = jax.random.fold_in(jax.random.key(self.seed), 0)
        with meshes.use(self.mesh, self.rules):
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
            ema = optax.incremental_update(params, state.ema, 1 - self.ema) if self.ema else {}
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        lost = ~finite
        if self.scales:
            lost &= ~scaling.overflows(loss, norm, scale)
            metrics = {**metrics, scaling.METRIC: scale}
        new = State(
            step=state.step + 1,
            variables={**state.variables, **collections, "params": params},
            opt_state=opt_state,
            ema=ema,
            skipped=state.skipped + lost,
            scale=self.scaling.after(state.scale, finite) if self.scales else None,
        )
        if self.max_skips or self.scales:
            kept = dataclasses.replace(state, step=new.step, skipped=new.skipped, scale=new.scale)
            new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, kept)
        return new, {"loss": loss, **metrics, "grad_norm": norm}

    def gradients(
        self, variables: Variables, batch: Any, key: jax.Array, scale: jax.Array | None = None
    ) -> tuple[jax.Array, Metrics, Any, Variables]:
        """(loss, metrics, gradients, new collections) of a prepared batch; `scale` multiplies the
        loss of the backward pass only."""
        rest = {name: value for name, value in variables.items() if name != "params"}

        def loss_of(params: Any, part: Any) -> tuple[jax.Array, Any]:
            params = held(self.frozen, params)  # or their backward pass would be computed
            loss, aux = self.objective.loss({**rest, "params": params}, part, key, True)
            return loss if scale is None else loss * scale, aux

        def unscaled(loss: jax.Array, grads: Any) -> tuple[jax.Array, Any]:
            if scale is None:
                return loss, grads
            return loss / scale, jax.tree.map(lambda x: x / scale, grads)  # exact: powers of two

        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        params = variables["params"]
        size = jax.tree.leaves(batch)[0].shape[0]
        if not self.microbatch or self.microbatch >= size or not self.objective.splittable:
            (loss, aux), grads = differentiate(params, batch)
            metrics, collections = split_aux(aux)
        else:
            loss, metrics, grads, collections = self._accumulate(differentiate, params, batch, size)
        loss, grads = unscaled(loss, grads)
        return loss, metrics, grads, collections

    def _accumulate(
        self, differentiate: Any, params: Any, batch: Any, size: int
    ) -> tuple[jax.Array, Metrics, Any, Variables]:
        """Sums over microbatches, which add up.

        Each row of devices along the mesh axis `data` sums its own gradients (a leading axis that
        vmap shards over `data`); they are reduced once after the loop, not per microbatch. Kernels
        are cast to half precision before it; their gradients are added in full.
        """
        ways = self.mesh.shape["data"]
        count = size // self.microbatch

        def cut(x: jax.Array) -> jax.Array:  # [microbatches, data, rows, …]
            x = chunked.split(x, count)
            x = x.reshape(count, ways, self.microbatch // ways, *x.shape[2:])
            return self._at(x, PartitionSpec(None, "data", "fsdp"))

        cast = cast_kernels(params, self.objective.runtime.compute_dtype)

        def own(part: Any) -> Any:
            if ways == 1:
                sums = differentiate(cast, jax.tree.map(lambda x: x[0], part))
                values, grads = jax.tree.map(lambda x: x[None], sums)
            else:
                with nn.logical_axis_rules(meshes.within_data(self.rules)):
                    each = jax.vmap(differentiate, (None, 0), spmd_axis_name="data")
                    values, grads = each(cast, part)
            return values, jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            return keep(jax.tree.map(jnp.add, sums, own(part))), None

        def keep(sums: Any) -> Any:  # gradients sharded as parameters, after the leading axis
            values, grads = sums
            specs = jax.tree.map(
                lambda sharding: PartitionSpec("data", *sharding.spec), self.shardings.params
            )
            return values, jax.tree.map(self._at, grads, specs)

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
        return {"loss": loss, **split_aux(aux)[0]}

    def compile_step(self, batch: Any) -> jax.stages.Compiled:
        """The compiled step for batches of these shapes, as `mesh.place` fills them up; it consumes
        (donates) its state."""
        self.check(jax.tree.leaves(batch)[0].shape[0])
        shardings = self.shardings
        engine, batch = self._filled(batch)
        step = jax.jit(
            engine.step,
            in_shardings=(shardings, meshes.batch_sharding(self.mesh)),
            out_shardings=(shardings, meshes.replicated(self.mesh)),
            donate_argnums=0,
        )
        with meshes.use(self.mesh, self.rules):
            return step.lower(self.abstract, batch).compile()

    def compile_measure(self, batch: Any) -> jax.stages.Compiled:
        """The compiled validation step for batches of these shapes."""
        size = jax.tree.leaves(batch)[0].shape[0]
        meshes.check_batch(size, self.mesh, "validation batch_size", self.objective.fills)
        engine, batch = self._filled(batch)
        measure = jax.jit(
            engine.measure,
            in_shardings=(self.shardings.variables, meshes.batch_sharding(self.mesh)),
            out_shardings=meshes.replicated(self.mesh),
        )
        with meshes.use(self.mesh, self.rules):
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

    def _filled(self, batch: Any) -> tuple[Engine, Any]:
        """The engine for batches that are filled up to equal shards, and their shapes."""
        size = jax.tree.leaves(batch)[0].shape[0]
        rows = meshes.filled(size, self.mesh)
        if rows == size:
            return self, batch

        def shape(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)

        engine = dataclasses.replace(self, objective=self.objective.with_examples(size))
        return engine, jax.tree.map(shape, batch)

    def _at(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


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


def _part(tree: Any, names: Mapping[str, Any]) -> Any:
    """The part of a nested dict that has these names."""
    return {
        name: _part(tree[name], below) if isinstance(below, Mapping) else tree[name]
        for name, below in names.items()
    }


def _replaced(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """A nested dict with some of its leaves replaced."""
    return {
        name: _replaced(leaf, leaves.get(name, {}))
        if isinstance(leaf, Mapping)
        else leaves.get(name, leaf)
        for name, leaf in tree.items()
    }


def model_flops(objective: Objective, spec: Any) -> float:
    """FLOPs of a training step over padded texts of these shapes: forward and backward, without
    what is computed a second time to save memory."""
    counted, variables = plain(objective)

    def loss(params: Any, rest: Variables, batch: Any, key: jax.Array) -> jax.Array:
        return counted.loss({**rest, "params": params}, counted.prepare(batch, key), key, True)[0]

    params = variables.pop("params")
    return flops.of(jax.grad(loss), params, variables, spec, jax.random.key(0))


def activation_bytes(objective: Objective, spec: Any) -> float:
    """About what a GPU keeps for the backward pass of a batch of these shapes.

    XLA computes cheap operations again within its fusions, and keeps about half of what JAX saves.
    """
    variables = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))

    def saved(variables: Variables, batch: Any, key: jax.Array) -> Any:
        rest, batch = dict(variables), objective.prepare(batch, key)
        params = rest.pop("params")

        def loss(params: Any) -> jax.Array:
            return objective.loss({**rest, "params": params}, batch, key, True)[0]

        return jax.vjp(loss, params)[1]

    found = jax.eval_shape(saved, variables, spec, jax.random.key(0))
    return 0.54 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(found))


def plain(objective: Objective) -> tuple[Any, Variables]:
    """The objective without what saves memory, and the shapes of its variables, which no kernel
    changes: cuDNN's needs a GPU, and plans are made anywhere."""
    runtime = dataclasses.replace(
        objective.runtime, attention="xla", remat="none", packed=(), kept=0
    )
    made = dataclasses.replace(objective, model=objective.model.clone(runtime=runtime))
    made = made.with_chunk(0) if made.chunk else made
    return made, nn.unbox(jax.eval_shape(made.init, jax.random.key(0)))


def with_vocabulary(objective: Any) -> Any:
    """The objective with a vocabulary of its model's size, where it needs one and has none."""
    if getattr(objective, "vocabulary", ()) is not None:
        return objective
    pieces = np.zeros(objective.model.config.vocab_size, bool)
    return dataclasses.replace(objective, vocabulary=Vocabulary(pieces))


def chunk_of(objective: Objective, microbatch: int) -> Objective:
    """The objective, encoding `microbatch` examples at a time (0: all) if it is not splittable."""
    if not microbatch or objective.splittable:
        return objective
    return objective.with_chunk(microbatch)
