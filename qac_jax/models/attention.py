"""Attention in one place: plain XLA, laid out for CPUs too, and one kernel for GPUs.

Queries, keys and values are head-major, [B, heads, L, head_dim], already scaled: whoever makes
the queries folds 1/sqrt(head_dim) into their weights, which are fewer than the queries.
Padding is given by key `lengths` [B]; what else is invisible (a causal window) by a boolean
`visible` [Lq, Lk] that is the same for every row of the batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from qac_jax.models import fused_attention, packing
from qac_jax.models.layers import Array, Runtime, dropout, seeds_of, statistics_dtype
from qac_jax.models.packing import Keys, Lengths, Packed, platform, text_keys, text_lengths


_HALF = ("bfloat16", "float16")  # what the kernel computes in
# Bytes of scores that a CPU computes at once: they stay in its cache, where those of a whole batch
# are written to memory and read again, three times.
_BLOCK = 4 << 20


def causal_window(length: int, window: int = -1) -> Array:
    """[L, L]: row i sees columns j <= i; with a window W > 0, only column 0 and i-W < j <= i.

    Column 0 holds the passage's vector and stays visible to every row (QAC's released code).
    """
    row = lax.broadcasted_iota(jnp.int32, (length, length), 0)
    column = lax.broadcasted_iota(jnp.int32, (length, length), 1)
    visible = column <= row
    if window > 0:
        visible &= (column == 0) | (column > row - window)
    return visible


def split_heads(x: Array, heads: int) -> Array:
    """[B, L, heads * head_dim] -> [B, heads, L, head_dim]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """[B, heads, L, head_dim] -> [B, L, heads * head_dim]."""
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * width)


def in_one_kernel(runtime: Runtime, config: Any) -> bool:
    """Whether `attend_joint` computes self-attention without windows and position biases here: in
    half precision on GPUs from Ampere on."""
    if runtime.attention == "xla" or runtime.dtype not in _HALF or platform() != "gpu":
        return False
    return (
        float(getattr(jax.devices()[0], "compute_capability", 9)) >= 8
        and packing.one_part_a_device()
        and config.hidden_size // config.num_heads in fused_attention.HEAD_SIZES
    )


def attend_joint(
    joint: Array,
    lengths: Lengths,
    heads: int,
    *,
    keys: Keys = None,
    site: int | Array = 0,
    rate: float = 0.0,
) -> Array:
    """Queries, keys and values [R, T, 3 · width], packed or not, to [R, T, width] in one kernel.

    What belongs to padding becomes 0. With several devices each computes its own texts.
    """
    counts, keys = text_lengths(lengths), text_keys(keys)
    assert counts is not None
    seeds = jnp.zeros(counts.shape, jnp.uint32)
    if keys is not None and rate:
        seeds = seeds_of(keys, site)
    longest = lengths.length if isinstance(lengths, Packed) else 0
    run = functools.partial(_in_one_kernel, heads, longest, 0.0 if keys is None else rate)
    if packing.parts() > 1:
        rows = PartitionSpec(packing.batch_axes())
        run = jax.shard_map(run, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)
    return run(joint, counts, seeds)


def _in_one_kernel(
    heads: int, longest: int, rate: float, joint: Array, counts: Array, seeds: Array
) -> Array:
    """On one device. longest: tokens that a packed text may have (0: texts are padded)."""
    tokens = joint.shape[0] * joint.shape[1]
    if longest:
        starts = jnp.cumsum(counts) - counts
    else:
        longest = joint.shape[1]
        starts = jnp.arange(joint.shape[0]) * longest
    starts = jnp.append(starts, tokens)
    shape = fused_attention.Shape(heads, longest, rate)
    mixed = fused_attention.attend(joint.reshape(tokens, -1), starts, counts, seeds, shape)
    return mixed.reshape(*joint.shape[:2], -1)


def attend(
    query: Array,
    key: Array,
    value: Array,
    lengths: Lengths,
    runtime: Runtime,
    *,
    visible: Array | None = None,
    bias: Array | None = None,
    keys: Keys = None,
    site: int | Array = 0,
    rate: float = 0.0,
) -> Array:
    """softmax(query key^T + bias) value over the visible keys: [B, heads, Lq, head_dim].

    bias is added to the scores and broadcast to [B, heads, Lq, Lk] (T5's relative positions).
    keys, site and rate drop attention probabilities. In packed layers too it gets unpacked
    queries, keys and values.
    """
    lengths, keys = text_lengths(lengths), text_keys(keys)
    drops = keys is not None and rate > 0.0
    compute: Callable[..., Array] = functools.partial(_xla, rate=rate if drops else 0.0)
    arguments = (query, key, value, lengths, visible, bias, keys if drops else None, site)
    if rows := _block(query, key):
        return _in_blocks(jax.checkpoint(compute), rows, *arguments)
    if runtime.remat == "attention":
        compute = jax.checkpoint(compute)
    return compute(*arguments)


def _block(query: Array, key: Array) -> int:
    """How many texts are computed at once; 0: all of them."""
    texts, heads, length, _ = query.shape
    of_text = heads * length * key.shape[2] * statistics_dtype(query.dtype).itemsize
    fitting = max(_BLOCK // of_text, 1)
    if platform() != "cpu" or jax.device_count() > 1 or texts < 2 * fitting:
        return 0
    return next((rows for rows in range(fitting, 0, -1) if texts % rows == 0), 0)


def _in_blocks(compute: Callable[..., Array], rows: int, *arguments: Any) -> Array:
    """`rows` texts after the others; a checkpointed `compute` keeps no scores."""
    query, key, value, lengths, visible, bias, keys, site = arguments
    of_texts = visible is not None and visible.ndim == 4  # not the same for all of them
    each = (query, key, value, lengths, visible if of_texts else None, keys)

    def block(cut: tuple) -> Array:
        query, key, value, lengths, seen, keys = cut
        seen = seen if of_texts else visible
        return compute(query, key, value, lengths, seen, bias, keys, site)

    texts = query.shape[0]
    cut = jax.tree.map(lambda x: x.reshape(texts // rows, rows, *x.shape[1:]), each)
    return lax.map(block, cut).reshape(*query.shape[:3], value.shape[3])


def _xla(
    query: Array,
    key: Array,
    value: Array,
    lengths: Array | None,
    visible: Array | None,
    bias: Array | None,
    keys: Array | None,
    site: int | Array,
    *,
    rate: float,
) -> Array:
    batched = ((0, 1), (0, 1))
    wide = statistics_dtype(query.dtype)
    scores = lax.dot_general(query, key, (((3,), (3,)), batched), preferred_element_type=wide)
    # Masks are added, not selected: XLA's CPU code fuses an addition into the score product.
    within = None
    if lengths is not None:
        column = lax.broadcasted_iota(jnp.int32, (1, 1, 1, key.shape[2]), 3)
        within = column < lengths[:, None, None, None]
    for term in (bias, _hidden(within, wide), _hidden(visible, wide)):
        if term is not None:
            scores = scores + term.astype(wide)
    # Normalised after the value product: that divides head_dim numbers a row, not Lk.
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = weights.sum(-1, keepdims=True)
    weights = dropout(weights, keys, site, rate).astype(value.dtype)
    mixed = lax.dot_general(weights, value, (((3,), (2,)), batched), preferred_element_type=wide)
    return (mixed / total).astype(query.dtype)


def _hidden(visible: Array | None, dtype: jnp.dtype) -> Array | None:
    """0 where visible, and so low a number elsewhere that its exponential is 0."""
    if visible is None:
        return None
    return jnp.where(visible, 0.0, 0.5 * jnp.finfo(dtype).min).astype(dtype)
