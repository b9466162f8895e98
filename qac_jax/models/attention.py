"""Attention in one place: plain XLA, laid out for CPUs too, and one kernel for GPUs.

Queries, keys and values are head-major, [B, heads, L, head_dim], already scaled: whoever makes
the queries folds 1/sqrt(head_dim) into their weights, which are fewer than the queries.
Padding is given by key `lengths` [B]; what else is invisible (a causal window) by a boolean
`visible` [Lq, Lk] that is the same for every row of the batch.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import PartitionSpec

from qac_jax.models import packing
from qac_jax.models.layers import Array, Runtime, dropout, seeds_of, statistics_dtype, stays
from qac_jax.models.packing import Keys, Lengths, Packed, platform, text_keys, text_lengths


_HALF = ("bfloat16", "float16")  # what the kernel computes in
# Bytes of scores that a CPU computes at once: they stay in its caches, where those of a whole batch
# are written to memory and read again, three times.
_BLOCK = 16 << 20


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
        and config.hidden_size // config.num_heads in HEAD_SIZES
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
    shape = KernelShape(heads, longest, rate)
    mixed = attend_texts(joint.reshape(tokens, -1), starts, counts, seeds, shape)
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
    weights = jnp.exp(scores - _largest(lax.stop_gradient(scores)))
    total = weights.sum(-1, keepdims=True)
    weights = dropout(weights, keys, site, rate).astype(value.dtype)
    mixed = lax.dot_general(weights, value, (((3,), (2,)), batched), preferred_element_type=wide)
    return (mixed / total).astype(query.dtype)


def _largest(scores: Array) -> Array:
    """The largest score of each row, [..., 1].

    On a CPU XLA walks along a row one score at a time; the larger of two halves it finds for many
    scores at once.
    """
    while platform() == "cpu" and scores.shape[-1] > 32 and scores.shape[-1] % 2 == 0:
        left, right = jnp.split(scores, 2, axis=-1)
        scores = jnp.maximum(left, right)
    return scores.max(-1, keepdims=True)


def _hidden(visible: Array | None, dtype: jnp.dtype) -> Array | None:
    """0 where visible, and so low a number elsewhere that its exponential is 0."""
    if visible is None:
        return None
    return jnp.where(visible, 0.0, 0.5 * jnp.finfo(dtype).min).astype(dtype)


# The kernel: attention of texts that lie one after another, forward and backward.
#
# Queries, keys and values of all texts come as one array [tokens, 3 · width], as one product makes
# them, and what comes back is [tokens, width]: nothing is moved to padded texts and back, no score
# leaves the kernel, and dropout of the probabilities costs a few integer operations each. The
# masks are those of `layers.dropout`, bit for bit. It is FlashAttention-2 (Dao, 2023, algorithms 1
# and 2), but for the backward pass, which has no sums over blocks in memory: a program computes
# the gradient of a block's keys and values, and then that of its queries, each from the scores
# again.
#
# Written with Pallas for Triton; `interpret` runs it anywhere, slowly, for tests.

_LOG2E = math.log2(math.e)
_SIZES = (16, 32, 64)  # tokens of a block
HEAD_SIZES = (16, 32, 64, 128)  # what Triton's tiles can be


@dataclasses.dataclass(frozen=True)
class KernelShape:
    """The sizes that are known when a program is compiled."""

    heads: int
    longest: int  # tokens that a text may have
    rate: float  # of dropout
    interpret: bool = False

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return next((size for size in _SIZES if size >= self.longest), _SIZES[-1])

    @property
    def blocks(self) -> int:
        """Blocks of the longest text."""
        return -(-self.longest // self.size)


@dataclasses.dataclass(frozen=True)
class _Tile:
    """One head of blocks of one text, in a program."""

    shape: KernelShape
    head: Any
    start: Any  # of the text
    count: Any  # tokens of it
    seed: Any
    head_size: int

    def rows(self, block: Any) -> Any:
        """The numbers of a block's tokens in its text."""
        return block * self.shape.size + jnp.arange(self.shape.size)

    def columns(self, part: int) -> Any:
        """Of this head in [tokens, parts · width]."""
        return pl.ds((part * self.shape.heads + self.head) * self.head_size, self.head_size)

    def _at(self, block: Any) -> Any:
        return pl.ds(self.start + block * self.shape.size, self.shape.size)

    def read(self, array: Any, block: Any, part: int = 0) -> Any:
        """Zeros beyond the text."""
        there = (self.rows(block) < self.count)[:, None]
        return plgpu.load(array.at[self._at(block), self.columns(part)], mask=there, other=0.0)

    def write(self, array: Any, block: Any, value: Any, part: int = 0) -> None:
        there = (self.rows(block) < self.count)[:, None]
        at = array.at[self._at(block), self.columns(part)]
        plgpu.store(at, value.astype(array.dtype), mask=there)

    def read_sums(self, array: Any, block: Any) -> Any:
        there = self.rows(block) < self.count
        return plgpu.load(array.at[self.head, self._at(block)], mask=there, other=0.0)

    def write_sums(self, array: Any, block: Any, value: Any) -> None:
        there = self.rows(block) < self.count
        plgpu.store(array.at[self.head, self._at(block)], value, mask=there)

    def dropped(self, weights: Any, queries: Any, keys: Any) -> Any:
        """Weights [queries, keys] of these blocks after dropout."""
        if not self.shape.rate:
            return weights
        longest = jnp.uint32(self.shape.longest)
        row = self.head.astype(jnp.uint32) * longest + self.rows(queries).astype(jnp.uint32)
        places = (row * longest)[:, None] + self.rows(keys).astype(jnp.uint32)[None, :]
        kept = stays(self.seed, places, self.shape.rate)
        return jnp.where(kept, weights * (1.0 / (1.0 - self.shape.rate)), 0.0)

    def weights(self, queries: Any, keys: Any, sums: Any) -> Any:
        """Probabilities of one block's queries for another's keys, from the log of their sums."""
        scores = plgpu.dot(queries, keys, trans_b=True)
        return jnp.exp2(scores * _LOG2E - sums[:, None])

    def fill(self, array: Any, end: Any, block: Any, parts: int = 1) -> None:
        """Zeros between this text and the next one, which programs of all its blocks share."""
        size = self.shape.size
        first = self.start + self.count + block * size
        stride = self.shape.blocks * size

        def zeros(turn: Any, carry: Any) -> Any:
            at = first + turn * stride
            there = (at + jnp.arange(size) < end)[:, None]
            for part in range(parts):
                place = array.at[pl.ds(at, size), self.columns(part)]
                plgpu.store(place, jnp.zeros((size, self.head_size), array.dtype), mask=there)
            return carry

        turns = lax.div(jnp.maximum(end - first, 0) + stride - 1, stride)
        lax.fori_loop(0, turns, zeros, 0)


def _tile(
    shape: KernelShape, starts: Any, counts: Any, seeds: Any, head_size: int
) -> tuple[Any, ...]:
    """The block of this program, its text's end (where the next begins) and its tiles."""
    head, block, text = (pl.program_id(axis) for axis in range(3))
    seed = seeds[text] if shape.rate else None
    tile = _Tile(shape, head, starts[text], counts[text], seed, head_size)
    return block, starts[text + 1], tile


def _forward_kernel(
    joint: Any, starts: Any, counts: Any, seeds: Any, out: Any, sums: Any, *, shape: KernelShape
) -> None:
    head_size = out.shape[1] // shape.heads
    block, end, tile = _tile(shape, starts, counts, seeds, head_size)

    @pl.when(block * shape.size < tile.count)
    def _() -> None:
        queries = tile.read(joint, block)

        def step(other: Any, carry: tuple) -> tuple:
            mixed, largest, total = carry
            keys, values = tile.read(joint, other, 1), tile.read(joint, other, 2)
            scores = plgpu.dot(queries, keys, trans_b=True) * _LOG2E
            scores = jnp.where((tile.rows(other) < tile.count)[None, :], scores, -jnp.inf)
            new = jnp.maximum(largest, scores.max(1))
            weights, less = jnp.exp2(scores - new[:, None]), jnp.exp2(largest - new)
            total = total * less + weights.sum(1)
            kept = tile.dropped(weights, block, other).astype(values.dtype)
            return mixed * less[:, None] + plgpu.dot(kept, values), new, total

        none = jnp.full(shape.size, -jnp.inf, jnp.float32)
        begin = (jnp.zeros(queries.shape, jnp.float32), none, jnp.zeros_like(none))
        blocks = lax.div(tile.count + shape.size - 1, shape.size)
        mixed, largest, total = lax.fori_loop(0, blocks, step, begin)
        tile.write(out, block, mixed / total[:, None])
        tile.write_sums(sums, block, largest + jnp.log2(total))

    tile.fill(out, end, block)


def _backward_kernel(
    joint: Any, out: Any, sums: Any, grad: Any, starts: Any, counts: Any, seeds: Any, d_joint: Any,
    *, shape: KernelShape,
) -> None:  # fmt: skip
    head_size = out.shape[1] // shape.heads
    block, end, tile = _tile(shape, starts, counts, seeds, head_size)

    def pair(q: Any, k: Any, of_queries: tuple, of_keys: tuple) -> tuple[Any, Any]:
        """The dropped probabilities, and the gradient of the scores."""
        queries, own, result, total = of_queries
        keys, values = of_keys
        weights = tile.weights(queries, keys, total)
        of_weights = tile.dropped(plgpu.dot(own, values, trans_b=True), q, k)
        inner = (own.astype(jnp.float32) * result.astype(jnp.float32)).sum(1)
        return tile.dropped(weights, q, k), weights * (of_weights - inner[:, None])

    def read_queries(at: Any) -> tuple:
        own, result = tile.read(grad, at), tile.read(out, at)
        return tile.read(joint, at), own, result, tile.read_sums(sums, at)

    def read_keys(at: Any) -> tuple:
        return tile.read(joint, at, 1), tile.read(joint, at, 2)

    @pl.when(block * shape.size < tile.count)
    def _() -> None:
        blocks = lax.div(tile.count + shape.size - 1, shape.size)
        zeros = jnp.zeros((shape.size, head_size), jnp.float32)
        mine = read_keys(block)

        def of_keys(other: Any, carry: tuple) -> tuple:
            d_keys, d_values = carry
            theirs = read_queries(other)
            weights, d_scores = pair(other, block, theirs, mine)
            kind = joint.dtype
            d_values = d_values + plgpu.dot(weights.astype(kind), theirs[1], trans_a=True)
            return d_keys + plgpu.dot(d_scores.astype(kind), theirs[0], trans_a=True), d_values

        d_keys, d_values = lax.fori_loop(0, blocks, of_keys, (zeros, zeros))
        tile.write(d_joint, block, d_keys, 1)
        tile.write(d_joint, block, d_values, 2)
        asking = read_queries(block)

        def of_queries(other: Any, d_queries: Any) -> Any:
            theirs = read_keys(other)
            _, d_scores = pair(block, other, asking, theirs)
            return d_queries + plgpu.dot(d_scores.astype(joint.dtype), theirs[0])

        tile.write(d_joint, block, lax.fori_loop(0, blocks, of_queries, zeros))

    tile.fill(d_joint, end, block, parts=3)


def attend_texts(
    joint: Array, starts: Array, counts: Array, seeds: Array, shape: KernelShape
) -> Array:
    """softmax(queries keys^T) values within each text, queries being scaled: [tokens, width].

    joint [tokens, 3 · width]: queries, keys and values, heads after heads. Text i has the `counts`
    [i] tokens from `starts` [i], which goes up and ends with the number of tokens (one entry more
    than texts). What lies between texts becomes 0, and its gradient too. seeds: uint32 [texts].
    """
    return _attend(joint, starts.astype(jnp.int32), counts.astype(jnp.int32), seeds, shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(joint: Array, starts: Array, counts: Array, seeds: Array, shape: KernelShape) -> Array:
    return _forward(joint, starts, counts, seeds, shape)[0]


def _forward(joint: Array, starts: Array, counts: Array, seeds: Array, shape: KernelShape) -> Any:
    tokens, width = joint.shape[0], joint.shape[1] // 3
    out = (
        jax.ShapeDtypeStruct((tokens, width), joint.dtype),
        jax.ShapeDtypeStruct((shape.heads, tokens), jnp.float32),
    )
    kernel = functools.partial(_forward_kernel, shape=shape)
    mixed, sums = _call(kernel, "attention", out, shape, counts)(joint, starts, counts, seeds)
    return mixed, (joint, mixed, sums, starts, counts, seeds)


def _backward(shape: KernelShape, kept: tuple, grad: Array) -> tuple[Array, None, None, None]:
    joint, mixed, sums, starts, counts, seeds = kept
    out = jax.ShapeDtypeStruct(joint.shape, joint.dtype)
    kernel = functools.partial(_backward_kernel, shape=shape)
    call = _call(kernel, "attention_backward", out, shape, counts)
    return call(joint, mixed, sums, grad, starts, counts, seeds), None, None, None


_attend.defvjp(_forward, _backward)


def _call(kernel: Any, name: str, out: Any, shape: KernelShape, counts: Array) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=out,
        grid=(shape.heads, shape.blocks, counts.shape[0]),  # neighbours read memory side by side
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=shape.interpret,
        name=name,
    )
