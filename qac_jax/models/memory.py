"""Bytes that training keeps for the backward pass, from formulas: for dry runs.

Counts what a layer's derivative needs (Korthikanti et al., 2022, "Reducing activation
recomputation"): per token 34 × hidden at two bytes a number, and 5 × heads × length for the
attention probabilities. A compiler that fuses keeps less, so this is an upper estimate.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


# Numbers kept of a layer for every token and unit of width, the attention's probabilities apart,
# and how many of them are left under each policy of `Runtime.remat`.
_WIDTHS = {"none": 17.0, "attention": 17.0, "dots": 8.0, "layer": 1.0}
_PROBABILITIES = {"none": 2.5, "attention": 0.0, "dots": 0.0, "layer": 0.0}
_LOGITS = 2 * 4  # a logit and its gradient, in fp32


def bert(
    module: Any, texts: float, length: int, *, layers: int | None = None, predictions: float = 0
) -> float:
    """A BERT of `layers` layers (default: its own) over padded texts, with its predictions.

    Heads on top of it are further layers of the same width.
    """
    config, runtime = module.config, module.runtime
    number = jnp.dtype(runtime.dtype).itemsize
    count = config.num_layers if layers is None else layers
    tokens = texts * length
    of_layer = _WIDTHS[runtime.remat] * config.hidden_size
    of_layer += _PROBABILITIES[runtime.remat] * config.num_heads * length
    words = config.vocab_size + -config.vocab_size % 128
    head = predictions * (_LOGITS * words + 4 * number * config.hidden_size)
    return number * tokens * (count * of_layer + 4 * config.hidden_size) + head
