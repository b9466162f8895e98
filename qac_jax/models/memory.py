"""Bytes that training keeps for the backward pass, from formulas: for dry runs.

Counts what a layer's derivative needs (Korthikanti et al., 2022, "Reducing activation
recomputation"): per token 34 × hidden at two bytes a number, and 5 × heads × length for the
attention probabilities. A compiler that fuses keeps less, so this is an upper estimate. Where
padding is left out (`Runtime.packed`), only what attention reads is kept of padded texts, if that.
"""

from __future__ import annotations

from collections.abc import Mapping

from qac_jax.models.layers import Runtime


# Numbers kept of a layer for every token and unit of width, the attention's probabilities apart,
# and how many of them are left under each policy of `Runtime.remat`.
_WIDTHS = {"none": 17.0, "attention": 17.0, "dots": 8.0, "layer": 1.0}
_PROBABILITIES = {"none": 2.5, "attention": 0.0, "dots": 0.0, "layer": 0.0}
# Of a layer at positions that are read but not computed: its input, their keys and values.
_OF_OTHERS = 3.0
# Numbers of `_WIDTHS` that are of padded texts even where texts are packed: queries, keys, values.
_PADDED = {"none": 3.0, "attention": 3.0, "dots": 0.0, "layer": 0.0}
_LOGIT = 4  # in fp32; its gradient is rounded to what activations are


def layers(
    runtime: Runtime,
    texts: float,
    length: int,
    count: int,
    width: int,
    heads: int,
    widths: Mapping[str, float] = _WIDTHS,
    rows: int | None = None,
    kernel: str = "xla",
) -> float:
    """`count` layers over padded texts, and the embeddings below them.

    widths: numbers kept under each policy, as multiples of the width, where not those of a BERT.
    rows: the last layer computes only this many positions of every text. kernel: what computes
    attention (attention.expected).
    """
    # A fused kernel computes the probabilities again, and Triton's reads packed texts as they are.
    probabilities = _PROBABILITIES[runtime.remat] * heads * length if kernel == "xla" else 0.0
    room = dict(runtime.packed).get(length, 1.0)
    padded = 0.0 if kernel == "triton" else _PADDED[runtime.remat]
    each = (widths[runtime.remat] - padded) * room + padded
    of_layer = each * width + probabilities
    kept = count * of_layer
    if rows is not None and count and rows < length:
        kept -= (1 - rows / length) * of_layer - min(each, _OF_OTHERS) * width
    return _bytes(runtime) * texts * length * (kept + 4 * room * width)


def mlm_head(runtime: Runtime, width: int, vocab_size: int, predictions: float) -> float:
    """Word predictions at this many positions; the vocabulary is padded to 128 columns."""
    words = vocab_size + -vocab_size % 128
    return predictions * ((_LOGIT + _bytes(runtime)) * words + 4 * _bytes(runtime) * width)


def _bytes(runtime: Runtime) -> int:
    """Of one activation."""
    return runtime.compute_dtype.itemsize
