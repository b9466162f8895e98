"""What a run would take, without data and without compiling: for dry runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from qac_jax import hardware
from qac_jax.data.form import Form
from qac_jax.data.kinds import settle
from qac_jax.training import report, start
from qac_jax.training.journal import padded_tokens


# The share of a device's peak that hours are said for: what well-tuned BERTs reach.
MFU = 0.4
_FLOAT = 4


def plan(
    objective: Any,
    *,
    steps: int | None,
    batch_size: int,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    lengths: Mapping[str, int] | None = None,
    ema: bool = False,
) -> dict[str, Any]:
    """Steps, tokens, FLOPs, bytes of state, hours on known devices; None where it is not known.

    Tokens are those of full batches, so they and the hours are upper bounds.
    """
    parameters = report.count_parameters(start.abstract_params(objective))
    result: dict[str, Any] = {
        "steps": steps,
        "batch_size": batch_size,
        "parameters": parameters,
        # Parameters, gradients, two moments of the optimiser, and the running mean.
        "state_bytes": parameters * _FLOAT * (5 if ema else 4),
    }
    if not kind:
        return result
    shapes = settle(kind, Form(), lengths=lengths, settings=settings).spec(batch_size)
    spec = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes.items()}
    tokens = padded_tokens(spec)
    result["tokens_per_step"] = tokens
    result["step_flops"] = report.flops(objective, spec)
    if steps is None:
        return result
    result["tokens"] = tokens * steps
    if result["step_flops"] is not None:
        result["flops"] = result["step_flops"] * steps
        result["mfu"] = MFU
        result["hours"] = {
            name: result["flops"] / (device.peak_flops * MFU) / 3600
            for name, device in hardware.DEVICES.items()
        }
    return result
