"""Contrastive losses in the global view: vectors of the whole batch in, one loss per query out.

Scores are `q @ p.T` over the whole batch: where the batch is sharded, the compiler gathers the
passages, so there is no gather code and no factor for the number of devices. `group`
(`negatives_group` of the objectives) is the number of consecutive examples that see one another,
whatever the number of devices (0: all). Scores and losses are fp32 at least, products at full
precision. `rows` is the number of queries computed at a time, and recomputed in the backward pass,
for batches whose matrix of scores would not fit.

The mean of the losses, which is over the whole batch, is taken by the objective.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError
from qac_jax.models.layers import Array
from qac_jax.objectives.chunked import chunked_encode


class Ranked(NamedTuple):
    """The result of a softmax over the candidates of each query."""

    loss: Array  # [Q] negative log-likelihood of the positive
    correct: Array  # [Q] 1 where no candidate scores above the positive


# Candidates that a query must not see: (a chunk of `about`, one row per query) -> bool [rows, K].
Excluded = Callable[[Any], Array]


def softmax_loss(
    queries: Array,
    candidates: Array,
    positives: Array,
    *,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    excluded: Excluded | None = None,
    about: Any = (),
    rows: int = 0,
) -> Ranked:
    """queries [Q, D] against candidates [K, D]; positives [Q] are rows of the candidates.

    `excluded(about)` is true for the candidates that a query does not see; `about` is a tree of
    arrays with one row per query, split together with the queries. The positive is always seen.
    smoothing ε mixes the positive with the uniform distribution over the visible candidates
    (torch's label smoothing).
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    columns = candidates.astype(wide)

    def ranked(part: tuple[Array, Array, Any]) -> Ranked:
        vectors, target, row_facts = part
        scores = jnp.matmul(vectors.astype(wide), columns.T, precision=lax.Precision.HIGHEST)
        scores = scores / temperature
        is_positive = jnp.arange(columns.shape[0]) == target[:, None]
        right = jnp.sum(jnp.where(is_positive, scores, 0), axis=-1)
        seen = None if excluded is None else is_positive | ~excluded(row_facts)
        allowed = scores if seen is None else jnp.where(seen, scores, -jnp.inf)
        log_z = jax.nn.logsumexp(allowed, axis=-1)
        loss = log_z - right
        if smoothing:
            mean = scores.mean(-1)
            if seen is not None:
                mean = jnp.sum(jnp.where(seen, scores, 0), -1) / jnp.sum(seen, -1)
            loss = (1.0 - smoothing) * loss + smoothing * (log_z - mean)
        correct = lax.stop_gradient(right >= jnp.max(allowed, axis=-1)).astype(loss.dtype)
        return Ranked(loss, correct)

    return chunked_encode(ranked, (queries, positives, about), rows)


def in_batch(
    queries: Array,
    passages: Array,
    *,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    group: int = 0,
    identities: Array | None = None,
    rows: int = 0,
) -> Ranked:
    """queries [B, D], passages [B, P, D], each query's positive first, then its negatives.

    A query's candidates are all passages of its group. identities [B, P] are numbers of the
    passages: another copy of a query's positive is then not a negative.
    """
    options: Any = {"temperature": temperature, "smoothing": smoothing, "rows": rows}

    def one(queries: Array, passages: Array, names: Array | None) -> Ranked:
        size, per, width = passages.shape
        copies: Any = {}
        if names is not None:
            flat = names.reshape(-1)
            copies = {"excluded": lambda own: own[:, None] == flat, "about": names[:, 0]}
        candidates, positives = passages.reshape(-1, width), jnp.arange(size) * per
        return softmax_loss(queries, candidates, positives, **options, **copies)

    return in_groups(one, group, queries, passages, identities)


def all_pairs(first: Array, second: Array, *, temperature: float = 1.0, group: int = 0) -> Ranked:
    """coCondenser's loss: first [N, D] and second [N, D] of every pair, each an anchor [N, 2].

    For each of the 2N vectors of a group all others are candidates, 2N - 1 of them, and its
    partner is the positive. Column 0 of the results belongs to `first`, column 1 to `second`.
    """

    def one(first: Array, second: Array) -> Ranked:
        count = first.shape[0]
        # Partners are neighbours: where the pairs are sharded, so are their vectors.
        vectors = jnp.stack([first, second], axis=1).reshape(2 * count, -1)
        own = jnp.arange(2 * count)
        itself: Any = {"excluded": lambda row: row[:, None] == own, "about": own}
        ranked = softmax_loss(vectors, vectors, own ^ 1, temperature=temperature, **itself)
        return jax.tree.map(lambda x: x.reshape(count, 2), ranked)

    return in_groups(one, group, first, second)


def in_groups(loss: Callable[..., Any], group: int, *arrays: Array | None) -> Any:
    """`loss` of every `group` consecutive examples separately (0: of all), rows in order."""
    size = next(array.shape[0] for array in arrays if array is not None)
    if not group or group == size:
        return loss(*arrays)
    if size % group:
        raise UserError(
            f"negatives_group={group} does not divide the batch of {size} examples; "
            "choose a divisor of it, or 0 for the whole batch"
        )
    cut = [None if a is None else a.reshape(size // group, group, *a.shape[1:]) for a in arrays]
    axes = tuple(None if a is None else 0 for a in arrays)
    return jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), jax.vmap(loss, axes)(*cut))
