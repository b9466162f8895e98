"""Dynamic loss scaling for training in float16 (Micikevicius et al., 2018).

float16 has no number between 0 and 6e-8, where most gradients of a mean over many tokens lie, nor
beyond 65504. So the loss is multiplied by a power of two before the backward pass, and the fp32
gradients are divided by it. A step whose gradient is not finite is skipped and halves the scale;
after a number of finite steps in a row the scale is doubled. bfloat16 has fp32's range and needs
none of this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


# With the least scale gradients are what they are: one that is not finite then is no overflow of
# the scale's making.
LEAST, LARGEST = 1.0, 2.0**24
# The name among a step's metrics.
METRIC = "loss_scale"

Scale = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The first scale, and how many finite steps in a row double it (as PyTorch's GradScaler)."""

    initial: float = 2.0**16
    period: int = 2000

    def start(self) -> Scale:
        """The scale of step 0, and the number of finite steps since it last changed."""
        return {"value": jnp.float32(self.initial), "good": jnp.zeros((), jnp.int32)}

    def after(self, scale: Scale, finite: jax.Array) -> Scale:
        """The scale for the next step."""
        value, good = scale["value"], scale["good"] + 1
        grown = jnp.where(good >= self.period, jnp.minimum(2 * value, LARGEST), value)
        return {
            "value": jnp.where(finite, grown, jnp.maximum(value / 2, LEAST)),
            "good": jnp.where(finite & (good < self.period), good, 0),
        }


def overflows(loss: Any, norm: Any, scale: Any) -> Any:
    """Whether a gradient with this norm is not finite because of the scale."""
    return jnp.isfinite(loss) & ~jnp.isfinite(norm) & (scale > LEAST)


def is_overflow(metrics: Mapping[str, Any]) -> bool:
    """The same of the metrics of a step on the host."""
    return (
        math.isfinite(metrics["loss"])
        and not math.isfinite(metrics["grad_norm"])
        and metrics.get(METRIC, LEAST) > LEAST
    )
