"""Poolings: hidden states of texts to one vector each, under sentence-transformers' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.models.layers import Array, statistics_dtype


def _first(hidden: Array, ends: Array, start: int) -> Array:
    del ends
    return hidden[:, start]


def _last(hidden: Array, ends: Array, start: int) -> Array:
    del start
    place = jnp.maximum(ends - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, place, axis=1)[:, 0]


def _max(hidden: Array, ends: Array, start: int) -> Array:
    seen = _seen(hidden, ends, start)
    return jnp.where(seen, hidden, jnp.finfo(hidden.dtype).min).max(1)


def _sum_and_count(hidden: Array, ends: Array, start: int) -> tuple[Array, Array]:
    total = jnp.where(_seen(hidden, ends, start), hidden, 0).sum(1)
    return total, jnp.maximum(ends - start, 1)[:, None].astype(hidden.dtype)


def _mean(hidden: Array, ends: Array, start: int) -> Array:
    total, count = _sum_and_count(hidden, ends, start)
    return total / count


def _mean_sqrt_len(hidden: Array, ends: Array, start: int) -> Array:
    total, count = _sum_and_count(hidden, ends, start)
    return total / jnp.sqrt(count)


def _weighted_mean(hidden: Array, ends: Array, start: int) -> Array:
    """Token i weighs i, from 1 (Muennighoff, 2022, SGPT); a prompt's numbers are not given anew."""
    weights = jnp.arange(1, hidden.shape[1] + 1, dtype=hidden.dtype)[:, None]
    weights = jnp.where(_seen(hidden, ends, start), weights, 0)
    return (hidden * weights).sum(1) / jnp.maximum(weights.sum(1), 1)


def _seen(hidden: Array, ends: Array, start: int) -> Array:
    """[B, L, 1]: the tokens that are pooled."""
    positions = jnp.arange(hidden.shape[1])
    return ((positions >= start) & (positions < ends[:, None]))[..., None]


_FUNCTIONS: Mapping[str, Callable[[Array, Array, int], Array]] = {
    "cls": _first,
    "mean": _mean,
    "max": _max,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
}
POOLINGS = tuple(_FUNCTIONS)


def check(name: str) -> None:
    """Raises UserError for a name that is not one of `POOLINGS`."""
    if name not in POOLINGS:
        raise UserError(f"pooling={name!r} is not known; {nearest(name, POOLINGS)}")


def pool(name: str, hidden: Array, lengths: Array | None, start: int = 0) -> Array:
    """hidden [B, L, D], right-padded to lengths [B] (None: no padding) -> [B, D].

    start: how many of the first tokens (a prompt's, with what stands before it) are left out.
    """
    if lengths is None:
        lengths = jnp.full(hidden.shape[0], hidden.shape[1])
    return _FUNCTIONS[name](hidden, lengths, start)


def mean_pool(hidden: Array, lengths: Array | None) -> Array:
    """The mean over each row's real tokens, special ones included: [B, L, D] -> [B, D]."""
    wide = hidden.astype(statistics_dtype(hidden.dtype))  # sums of long texts exceed float16
    mean = wide.mean(1) if lengths is None else _mean(wide, lengths, 0)
    return mean.astype(hidden.dtype)


def windows(hidden: Array, lengths: Array | None, size: int, start: int = 0) -> Array:
    """Means of `size` tokens in a row, each window half over the next: [B, L, D] -> [B, W, D].

    Late chunking (Günther et al., 2024): parts of a text whose vectors have seen all of it. A text
    has the first `window_counts` of its windows; the others mean nothing.
    """
    count, length, _ = hidden.shape
    if lengths is None:
        lengths = jnp.full(count, length)
    most = int(window_counts(np.array([length]), size, start)[0])
    first = start + size // 2 * jnp.arange(most)
    begins = jnp.minimum(first, lengths[:, None])
    ends = jnp.minimum(first + size, lengths[:, None])
    sums = jnp.pad(hidden.cumsum(1), ((0, 0), (1, 0), (0, 0)))
    total = _at(sums, ends) - _at(sums, begins)
    return total / jnp.maximum(ends - begins, 1)[..., None].astype(hidden.dtype)


def window_counts(lengths: np.ndarray, size: int, start: int = 0) -> np.ndarray:
    """How many windows texts of these lengths have, at least one: the last one reaches the end."""
    step = size // 2
    return -(-np.maximum(lengths - start - (size - step), 1) // step)


def _at(sums: Array, places: Array) -> Array:
    return jnp.take_along_axis(sums, places[..., None], axis=1)


def rows(name: str, start: int = 0) -> int | None:
    """How many of the first positions are read (None: all), for `Backbone.__call__`."""
    return start + 1 if name == "cls" else None
