"""Attention of texts that lie one after another, in one GPU kernel, forward and backward.

Queries, keys and values of all texts come as one array [tokens, 3 · width], as one product makes
them, and what comes back is [tokens, width]: nothing is moved to padded texts and back, no score
leaves the kernel, and dropout of the probabilities costs a few integer operations each. The masks
are those of `layers.dropout`, bit for bit. It is FlashAttention-2 (Dao, 2023, algorithms 1 and 2),
but for the backward pass, which has no sums over blocks in memory: a program computes the gradient
of a block's keys and values, and then that of its queries, each from the scores again.

Written with Pallas for Triton; `interpret` runs it anywhere, slowly, for tests.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from qac_jax.models.layers import Array, stays


_LOG2E = math.log2(math.e)
_SIZES = (16, 32, 64)  # tokens of a block
HEAD_SIZES = (16, 32, 64, 128)  # what Triton's tiles can be


@dataclasses.dataclass(frozen=True)
class Shape:
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

    shape: Shape
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


def _tile(shape: Shape, starts: Any, counts: Any, seeds: Any, head_size: int) -> tuple[Any, ...]:
    """The block of this program, its text's end (where the next begins) and its tiles."""
    head, block, text = (pl.program_id(axis) for axis in range(3))
    seed = seeds[text] if shape.rate else None
    tile = _Tile(shape, head, starts[text], counts[text], seed, head_size)
    return block, starts[text + 1], tile


def _forward_kernel(
    joint: Any, starts: Any, counts: Any, seeds: Any, out: Any, sums: Any, *, shape: Shape
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
    *, shape: Shape,
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


def attend(joint: Array, starts: Array, counts: Array, seeds: Array, shape: Shape) -> Array:
    """softmax(queries keys^T) values within each text, queries being scaled: [tokens, width].

    joint [tokens, 3 · width]: queries, keys and values, heads after heads. Text i has the `counts`
    [i] tokens from `starts` [i], which goes up and ends with the number of tokens (one entry more
    than texts). What lies between texts becomes 0, and its gradient too. seeds: uint32 [texts].
    """
    return _attend(joint, starts.astype(jnp.int32), counts.astype(jnp.int32), seeds, shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(joint: Array, starts: Array, counts: Array, seeds: Array, shape: Shape) -> Array:
    return _forward(joint, starts, counts, seeds, shape)[0]


def _forward(joint: Array, starts: Array, counts: Array, seeds: Array, shape: Shape) -> Any:
    tokens, width = joint.shape[0], joint.shape[1] // 3
    out = (
        jax.ShapeDtypeStruct((tokens, width), joint.dtype),
        jax.ShapeDtypeStruct((shape.heads, tokens), jnp.float32),
    )
    kernel = functools.partial(_forward_kernel, shape=shape)
    mixed, sums = _call(kernel, "attention", out, shape, counts)(joint, starts, counts, seeds)
    return mixed, (joint, mixed, sums, starts, counts, seeds)


def _backward(shape: Shape, kept: tuple, grad: Array) -> tuple[Array, None, None, None]:
    joint, mixed, sums, starts, counts, seeds = kept
    out = jax.ShapeDtypeStruct(joint.shape, joint.dtype)
    kernel = functools.partial(_backward_kernel, shape=shape)
    call = _call(kernel, "attention_backward", out, shape, counts)
    return call(joint, mixed, sums, grad, starts, counts, seeds), None, None, None


_attend.defvjp(_forward, _backward)


def _call(kernel: Any, name: str, out: Any, shape: Shape, counts: Array) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=out,
        grid=(shape.heads, shape.blocks, counts.shape[0]),  # neighbours read memory side by side
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=shape.interpret,
        name=name,
    )
