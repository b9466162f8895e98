"""Models that read a text and write another: what decoding and their training need of them."""

from __future__ import annotations

from qac_jax.models.pointer import PointerGenerator
from qac_jax.models.t5 import T5


# Each has `encode`, `decode`, `init_cache` and `step`, as t5.py describes them.
Writer = T5 | PointerGenerator
