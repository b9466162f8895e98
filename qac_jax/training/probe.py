"""A retrieval probe: how well the encoder finds the passages of held-out questions, meanwhile.

Candidates are the passages of all questions of the probe, so its MRR is far higher than that of a
search in a corpus; what counts is where it stops rising.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from qac_jax.errors import UserError
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig, backbone_of
from qac_jax.objectives import towers
from qac_jax.objectives.objective import Objective, Variables
from qac_jax.training import mesh as meshes
from qac_jax.training.feed import Loader
from qac_jax.training.journal import Figures
from qac_jax.training.settings import PROBE, Monitoring
from qac_jax.training.step import Engine, State


_TOP = 10


class Probe:
    """MRR, and the share of questions whose passage is among the first ten."""

    def __init__(self, engine: Engine, data: Loader, chosen: Monitoring):
        self._engine, self._data, self._start = engine, data, data.state()
        spec = meshes.whole_spec(data.spec, engine.mesh)
        size = next(iter(spec.values())).shape[0]
        self._batches = max(min(data.examples_per_epoch, chosen.probe_questions) // size, 1)

        def encode(variables: Variables, batch: Any) -> Any:
            return *vectors(engine.objective, variables, batch, chosen.probe_pooling), (
                batch["passages"][:, 0]
            )

        encoded = jax.jit(
            encode,
            in_shardings=(engine.shardings.variables, meshes.batch_sharding(engine.mesh)),
            out_shardings=meshes.replicated(engine.mesh),
        )
        with meshes.use(engine.mesh, engine.rules):
            self._encode = encoded.lower(engine.abstract.variables, spec).compile()

    def __call__(self, state: State) -> Figures:
        variables = state.variables
        if self._engine.ema:
            variables = {**variables, "params": state.ema}
        self._data.restore(self._start)
        parts = []
        for _ in range(self._batches):
            batch = meshes.place(next(self._data), self._engine.mesh)
            parts.append(jax.device_get(self._encode(variables, batch)))
        queries, passages, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        found = ranks(queries, passages, ids)
        return {
            f"{PROBE}mrr": float(np.mean(1 / found)),
            f"{PROBE}recall@{_TOP}": float(np.mean(found <= _TOP)),
        }


def vectors(
    objective: Objective, variables: Variables, batch: Any, pooling: str
) -> tuple[jax.Array, jax.Array]:
    """Queries [B, D] and passages [B, D] by the encoder that would be exported now.

    A dual encoder has its own pooling; of another encoder's vectors the cosine is taken.
    """
    module, params = objective.encoder_module, objective.encoder(variables)["params"]
    if isinstance(module, DualEncoder):
        model = module
    elif (inside := backbone_of(module, params)) is not None:
        config = DualEncoderConfig(inside[0].with_parts(), pooling=pooling, normalize=True)
        model, params = towers.initialised(DualEncoder(config), module, params)
    else:
        raise UserError(
            f"a {type(module).__name__} has no vectors of texts for a probe; leave out --probe"
        )
    inputs = {"params": params}
    queries = model.apply(inputs, batch["query"], batch["query_length"], side="query")
    ids, lengths = batch["passages"][:, 0], batch["passages_length"][:, 0]
    passages = model.apply(inputs, ids, lengths, side="passage")
    return queries, passages


def ranks(queries: np.ndarray, passages: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The rank of each query's passage [Q] among all different ones.

    ids [Q, L] say which are the same. Of equal scores the own one is last, so that an encoder for
    which all texts are one has no success.
    """
    _, first, own = np.unique(ids, axis=0, return_index=True, return_inverse=True)
    scores = queries.astype(np.float32) @ passages[first].astype(np.float32).T
    right = np.take_along_axis(scores, own.reshape(-1, 1), axis=1)
    return (scores >= right).sum(axis=1)
