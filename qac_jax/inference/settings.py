"""How models are applied: light to import, so that the command line can list the settings."""

from __future__ import annotations

import dataclasses

from qac_jax.fields import option


@dataclasses.dataclass(frozen=True)
class Inference:
    """How a model is applied."""

    precision: str = option(
        "auto",
        "of matrix products (auto: bfloat16 where there are units for it)",
        choices=("auto", "float32", "bfloat16"),
    )
    batch_tokens: int = option(0, "tokens a batch and device (0: by device)", affects_result=False)
