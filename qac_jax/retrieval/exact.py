"""Exact search by inner product, one block of vectors after the other.

On accelerators, or several devices, the rows of a block are sharded over them; each finds its own
top k, and these are merged into the top k of the blocks before. One CPU multiplies by BLAS and
looks only at scores above the worst that is kept, which are few after the first block: nearly all
of its time is the product. Of equal scores the earlier row wins, whatever the blocks.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from qac_jax.errors import UserError
from qac_jax.processes import prefetched
from qac_jax.retrieval.vectors import Vectors


# Bytes of a block of vectors, and of the scores of queries against it.
_BLOCK_BYTES = {"cpu": 1 << 24}
_SCORE_BYTES = {"cpu": 1 << 26}
_MANY_BYTES = 1 << 30
# Vectors that fill less of the devices' memory than this stay there between searches.
_RESIDENT_SHARE = 0.6

_EMPTY = np.iinfo(np.int32).max  # the row of a rank that is still empty
_AXIS = "data"

State = tuple[jax.Array, jax.Array]


class Exact:
    """Searches all vectors, with at most two blocks of them in memory."""

    def __init__(self, vectors: Vectors, *, devices: list[Any] | None = None, block_rows: int = 0):
        devices = devices or jax.local_devices()
        self._vectors = vectors
        self._mesh = jax.make_mesh((len(devices),), (_AXIS,), (AxisType.Auto,), devices=devices)
        self._backend = devices[0].platform
        if not block_rows:
            row_bytes = vectors.width * vectors.dtype.itemsize
            block_rows = _BLOCK_BYTES.get(self._backend, _MANY_BYTES) // row_bytes
        # A whole number of groups on each device: see `best`.
        unit = 128 * len(devices)
        self._block_rows = -(-min(block_rows, max(len(vectors), 1)) // unit) * unit
        self._resident: list[tuple[int, jax.Array]] | None = None

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The top k rows for each query, best first: (scores float32, rows int64) [queries, k].
        Where there are fewer rows, the row is -1 and the score minus infinity.
        """
        check_width(queries, self._vectors.width)
        if self._backend == "cpu" and self._mesh.size == 1:
            return self._by_blas(np.asarray(queries, np.float32), k)
        place = NamedSharding(self._mesh, PartitionSpec())
        score_bytes = _SCORE_BYTES.get(self._backend, 2 * _MANY_BYTES)
        size = max(1, min(len(queries), score_bytes // (4 * self._block_rows)))
        chunks = []
        for start in range(0, len(queries), size):
            chunk = np.zeros((size, self._vectors.width), np.float32)
            part = queries[start : start + size]
            chunk[: len(part)] = part
            chunks.append(jax.device_put(chunk, place))
        empty: State = (
            jnp.full((size, k), -jnp.inf, jnp.float32),
            jnp.full((size, k), _EMPTY, jnp.int32),
        )
        states = [jax.device_put(empty, place) for _ in chunks]
        for start, block in self._blocks():
            count = min(self._block_rows, len(self) - start)
            for number, chunk in enumerate(chunks):
                states[number] = self._step(states[number], chunk, block, start, count)
            # One block at a time: the next may only be read while this one is searched.
            jax.block_until_ready(states)
        if not states:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        scores = np.concatenate([np.asarray(s) for s, _ in states])[: len(queries)]
        rows = np.concatenate([np.asarray(r) for _, r in states])[: len(queries)].astype(np.int64)
        rows[rows == _EMPTY] = -1
        return scores, rows

    def _by_blas(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = np.full((len(queries), k), -np.inf, np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        size = max(1, _SCORE_BYTES["cpu"] // (4 * self._block_rows))
        for start, block in self._read_ahead():
            across = np.asarray(block, np.float32).T
            for first in range(0, len(queries), size):
                part = slice(first, first + size)
                merge(scores[part], rows[part], queries[part] @ across, start)
        return scores, rows

    def _blocks(self) -> Iterator[tuple[int, jax.Array]]:
        """(first row, rows on the devices), padded with zeros so that all have one shape."""
        if self._resident is not None:
            yield from self._resident
            return
        resident: list[tuple[int, jax.Array]] | None = [] if self._fits() else None
        for start, block in self._read_ahead():
            missing = self._block_rows - len(block)
            block = np.pad(block, ((0, missing), (0, 0))) if missing else block
            placed = jax.device_put(block, NamedSharding(self._mesh, PartitionSpec(_AXIS)))
            if resident is not None:
                resident.append((start, placed))
            yield start, placed
        self._resident = resident

    def _read_ahead(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows); the next block is read in the background."""
        starts = range(0, len(self), self._block_rows)
        return zip(starts, prefetched(self._read, starts), strict=True)

    def _read(self, start: int) -> np.ndarray:
        return self._vectors.read(start, min(start + self._block_rows, len(self)))

    def _fits(self) -> bool:
        if self._backend == "cpu":
            return False
        stats = self._mesh.devices.flat[0].memory_stats() or {}
        total = len(self) * self._vectors.width * self._vectors.dtype.itemsize
        return total < _RESIDENT_SHARE * stats.get("bytes_limit", 0) * self._mesh.size

    @functools.cached_property
    def _step(self) -> Any:
        """(top k so far, queries, block, its first row, its rows without padding) -> top k."""
        whole, cut = PartitionSpec(), PartitionSpec(_AXIS)
        tensor_cores = self._backend != "cpu" and self._vectors.dtype == np.float16

        def step(
            state: State, queries: jax.Array, block: jax.Array, start: Any, count: Any
        ) -> State:
            k = state[0].shape[1]

            def on_device(queries: jax.Array, rows: jax.Array, start: Any, count: Any) -> State:
                first = lax.axis_index(_AXIS) * rows.shape[0]
                real = first + jnp.arange(rows.shape[0]) < count
                products = lax.dot_general(  # in fp32; fp16 is multiplied on tensor cores
                    queries.astype(rows.dtype) if tensor_cores else queries,
                    rows if tensor_cores else rows.astype(jnp.float32),
                    (((1,), (1,)), ((), ())),
                    precision=lax.Precision.HIGHEST,
                    preferred_element_type=jnp.float32,
                )
                scores = jnp.where(real, products, -jnp.inf)
                scores, places = best(scores, min(k, rows.shape[0]))
                places = jnp.where(first + places < count, start + first + places, _EMPTY)
                return scores, places

            merged = jax.shard_map(
                on_device,
                mesh=self._mesh,
                in_specs=(whole, cut, whole, whole),
                out_specs=PartitionSpec(None, _AXIS),
            )(queries, block, start, count)
            # The earlier rows stand first, and top_k prefers what stands first.
            scores, rows = (jnp.concatenate(pair, 1) for pair in zip(state, merged, strict=True))
            scores, places = lax.top_k(scores, k)
            return scores, jnp.take_along_axis(rows, places, 1)

        same = NamedSharding(self._mesh, whole)
        return jax.jit(step, out_shardings=(same, same))


def merge(best: np.ndarray, rows: np.ndarray, scores: np.ndarray, first: int) -> None:
    """Changes the top k of earlier rows, `best` and `rows` [queries, k], into that of these and of
    the rows from `first` on, whose `scores` are [queries, rows]. Ranks still empty are row -1.
    """
    k, count = best.shape[1], scores.shape[1]
    if (rows[:, -1] >= 0).all():
        better = scores > best[:, -1:]
    elif count > k:
        better = scores >= np.partition(scores, count - k, 1)[:, count - k, None]
    else:
        better = np.ones(scores.shape, bool)
    query, place = np.divmod(np.flatnonzero(better), count)
    found = np.bincount(query, minlength=len(best))
    if not len(query):
        return
    # The candidates of each query behind what it has, in the order of rows, which a stable sort
    # keeps among equal scores.
    slot = k + np.arange(len(query)) - np.repeat(np.cumsum(found) - found, found)
    whose = np.cumsum(found > 0) - 1  # the place of a query among those with candidates
    asked = np.flatnonzero(found)
    every = np.full((len(asked), k + found.max()), -np.inf, np.float32)
    numbers = np.full(every.shape, -1, np.int64)
    every[:, :k], numbers[:, :k] = best[asked], rows[asked]
    every[whose[query], slot], numbers[whose[query], slot] = scores[query, place], first + place
    order = np.argsort(-every, 1, kind="stable")[:, :k]
    best[asked], rows[asked] = (np.take_along_axis(x, order, 1) for x in (every, numbers))


def best(scores: jax.Array, k: int) -> State:
    """`lax.top_k` over [queries, rows], in two steps where there are many rows.

    The top k lie in the k groups with the largest maxima, so only those are sorted. Of equal
    scores the first win here as well: before a skipped group there are k scores at least as high.
    """
    queries, rows = scores.shape
    size = 1
    while rows % (2 * size) == 0 and (2 * size) ** 2 * k <= 2 * rows:
        size *= 2
    if size < 4:
        return lax.top_k(scores, k)
    groups = scores.reshape(queries, rows // size, size)
    chosen = jnp.sort(lax.top_k(groups.max(-1), k)[1], -1)
    inside = jnp.take_along_axis(groups, chosen[..., None], 1).reshape(queries, k * size)
    scores, places = lax.top_k(inside, k)
    group = jnp.take_along_axis(chosen, places // size, 1)
    return scores, group * size + places % size


def check_width(queries: np.ndarray, width: int) -> None:
    if queries.ndim != 2 or queries.shape[1] != width:
        raise UserError(
            f"the queries are vectors of {queries.shape[-1]} dimensions and the index holds {width}"
        )
