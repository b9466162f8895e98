"""The cost of a run, without data and without compiling: for dry runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax

from qac_jax import hardware
from qac_jax.data.featurizer import Featurizer, settle
from qac_jax.data.form import Form
from qac_jax.hub import weights
from qac_jax.objectives.objective import Context, Objective
from qac_jax.training import step
from qac_jax.training.metrics import padded_tokens


# The share of a device's peak that hours are planned for, in FLOPs of padded texts: what CoT-MAE
# was measured at on an H100 with dropout, with padding and, at MS MARCO's lengths, without
# (docs/results/speed.md).
MFU, PACKED_MFU = 0.259, 0.566
_FLOAT = 4


def plan(
    objective: Objective,
    *,
    steps: int | None,
    batch_size: int,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    lengths: Mapping[str, int] | None = None,
    ema: bool = False,
    encodes_twice: bool = False,
    pack: bool = False,
) -> dict[str, Any]:
    """Steps, tokens, FLOPs, bytes of state, hours on known devices; None where unknown.

    Tokens and FLOPs are those of full batches; without padding (`pack`) hours are those measured
    with texts as long as MS MARCO's.
    """
    _, variables = step.plain(objective)
    parameters = step.count_parameters(variables["params"])
    state = [x for n, part in variables.items() if n != "params" for x in jax.tree.leaves(part)]
    result: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "parameters": parameters,
        "parameters_of_layers": step.count_parameters(_layers(variables["params"])),
        # Parameters, gradients, two moments of the optimiser, the EMA, and the objective's other
        # state.
        "state_bytes": parameters * _FLOAT * (5 if ema else 4)
        + sum(x.size * x.dtype.itemsize for x in state),
    }
    if not kind:
        return result
    recipe = settle(kind, Form(), lengths=lengths, settings=settings)

    tokens = padded_tokens(spec(recipe, batch_size))
    result["tokens_per_step"] = tokens
    ready = objective.bind(Context())
    result["step_flops"] = step.model_flops(ready, spec(recipe, batch_size))
    if steps is None:
        return result
    result["tokens"] = tokens * steps
    result["flops"] = result["step_flops"] * steps
    result["mfu"] = PACKED_MFU if pack and objective.packs else MFU
    if encodes_twice:
        result["mfu"] *= 3 / 4
    result["hours"] = {
        name: result["flops"] / (device.peak_flops * result["mfu"]) / 3600
        for name, device in hardware.DEVICES.items()
    }
    return result


def _layers(params: Any) -> Any:
    """Parameters but those of embeddings."""
    return {
        path: leaf
        for path, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()
        if not weights.is_embedding(path)
    }


def spec(recipe: Featurizer, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = recipe.spec(rows)
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes.items()}
