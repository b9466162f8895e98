"""A few steps of an objective on the devices at hand, with made-up texts: what a run would take."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qac_jax.data.featurizer import Featurizer
from qac_jax.objectives.objective import Context, Objective
from qac_jax.training import estimate, step
from qac_jax.training import mesh as meshes


# The work of a step that is tried: a second or a few on two cores. More examples than that are
# taken to cost in proportion.
_FLOPS = 2.5e11
_SECONDS, _AT_LEAST = 4.0, 2


@dataclasses.dataclass(frozen=True)
class Trial:
    """What one step of `rows` examples took on all devices at hand, and compiling it."""

    rows: int
    seconds: float
    compiling: float
    flops: float  # of a step

    def of(self, examples: int) -> float:
        """Seconds of a step of so many examples."""
        return self.seconds * examples / self.rows


def run(objective: Objective, kind: Featurizer, batch_size: int, microbatch: int) -> Trial:
    """Compiles and tries a step of `batch_size` examples, or of as many as it takes seconds for."""
    rows = _rows(objective, kind, batch_size)
    piece = microbatch or objective.chunk
    if 0 < piece < batch_size:  # in two pieces, as it would be in more
        piece = min(piece, max(rows // 2, 1))
        rows = 2 * piece
    objective = objective.bind(Context(chunk=piece, precision=objective.runtime.dtype))
    mesh = meshes.make_mesh(devices=jax.local_devices()[:1])
    engine = step.Engine(
        objective, optax.adamw(1e-4), mesh, meshes.rules_named("default"), microbatch=piece
    )
    batch = _batch(objective, kind, rows)
    began = time.perf_counter()
    compiled = engine.compile_step(batch)
    compiling = time.perf_counter() - began
    # Values do not matter, so no program is compiled that draws them.
    state = jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), engine.abstract)
    state, placed = jax.device_put(state, engine.shardings), meshes.place(batch, mesh)
    taken: list[float] = []
    while len(taken) <= _AT_LEAST or sum(taken) < _SECONDS:
        began = time.perf_counter()
        state, metrics = compiled(state, placed)
        jax.block_until_ready((state, metrics))
        taken.append(time.perf_counter() - began)
    spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    # The first one may wait for memory.
    return Trial(rows, float(np.median(taken[1:])), compiling, step.model_flops(objective, spec))


def _rows(objective: Objective, kind: Featurizer, batch_size: int) -> int:
    least = 2 if batch_size > 1 else 1  # contrastive losses need another example
    flops = step.model_flops(objective.bind(Context()), estimate.spec(kind, batch_size))
    return max(least, min(batch_size, int(batch_size * _FLOPS / flops)))


def _batch(objective: Any, kind: Featurizer, rows: int) -> dict[str, np.ndarray]:
    """Full texts of random words; features that are no texts are 0."""
    rng, spec = np.random.default_rng(0), kind.spec(rows)
    config = objective.model.config
    words = getattr(config, "vocab_size", None) or config.backbone.vocab_size
    batch = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
    for name, lengths in batch.items():
        if name.endswith("_length") and (text := name.removesuffix("_length")) in batch:
            ids = rng.integers(min(5, words - 1), words, batch[text].shape)
            batch[text] = ids.astype(batch[text].dtype)
            lengths[:] = batch[text].shape[-1]
    return batch
