"""Beam search as Hugging Face does it: what is kept, when it stops, and how it scores.

At every step the 2K best continuations of a text's K beams are looked at, so that K are left to
go on with when others end. Ended ones are kept apart, the K best of them, by
log-likelihood / length ** penalty. A text is finished when its best open beam cannot beat its
worst ended one any more (`early_stopping`: "no", judged at the present length; "never", at the
length that suits it best; "yes": as soon as K have ended).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.decoding.sampling import Decoded, Rules, largest
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.layers import Array, statistics_dtype
from qac_jax.models.pointer import Writer


# "Never": far below all scores, and yet a number, as scores are added to it.
_LOW = -1.0e9


class _Ended(NamedTuple):
    """The best continuations that have ended, the best one first: [B, K, …]."""

    tokens: Array
    lengths: Array
    scores: Array
    filled: Array


class _State(NamedTuple):
    tokens: Array  # [B, K, max_tokens] of the open beams
    scores: Array  # [B, K] sums of log-likelihoods
    last: Array  # [B · K]
    ended: _Ended
    improvable: Array  # [B]
    stuck: Array  # no beam of any text can go on
    cache: Any


def search(
    module: Writer, variables: Any, memory: Any, lengths: Array, limits: Array, rules: Rules
) -> Decoded:
    """The `samples` best continuations of each text."""
    config, settings = module.config, rules.settings
    texts, beams, size = lengths.shape[0], settings.beams, settings.max_tokens
    dtype = statistics_dtype(module.runtime.compute_dtype)

    def step(state: _State) -> _State:
        position = state.cache.position
        length = position + 1
        logits, cache = module.apply(variables, state.last, state.cache, method="step")
        scores = jax.nn.log_softmax(logits.astype(dtype), axis=-1)
        scores = rules.allowed(scores, state.tokens.reshape(texts * beams, size), position)
        vocabulary = scores.shape[-1]
        scores = (scores.reshape(texts, beams, vocabulary) + state.scores[..., None]).reshape(
            texts, beams * vocabulary
        )
        values, places = largest(scores, 2 * beams)
        origin, token = places // vocabulary, (places % vocabulary).astype(jnp.int32)
        tokens = lax.dynamic_update_slice_in_dim(
            _taken(state.tokens, origin), token[..., None], position, 2
        )
        ends = (token == config.eos_id) | (length >= limits[:, None])

        ended = _with_new(state, values, tokens, ends, length, settings)
        running, best = lax.top_k(values + ends * _LOW, beams)
        rows = _taken(origin, best) + beams * jnp.arange(texts)[:, None]
        return _State(
            tokens=_taken(tokens, best),
            scores=running,
            last=_taken(token, best).reshape(-1),
            ended=ended,
            improvable=state.improvable & _can_improve(running, ended, length, limits, settings),
            stuck=ends.all(),
            cache=cache.take(rows.reshape(-1)),
        )

    def goes_on(state: _State) -> Array:
        goes = (state.cache.position < size) & state.improvable.any() & ~state.stuck
        if settings.early_stopping == "yes":
            goes &= ~state.ended.filled.all()
        return goes

    shape = (texts, beams)
    nothing = _Ended(
        tokens=jnp.full((*shape, size), config.pad_id, jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        scores=jnp.full(shape, _LOW, dtype),
        filled=jnp.zeros(shape, bool),
    )
    start = _State(
        tokens=nothing.tokens,
        # All beams are the same at first: only one of them may be continued.
        scores=jnp.where(jnp.arange(beams) == 0, 0.0, _LOW).astype(dtype) + jnp.zeros(shape, dtype),
        last=jnp.full(texts * beams, config.start_id, jnp.int32),
        ended=nothing,
        improvable=jnp.ones(texts, bool),
        stuck=jnp.zeros((), bool),
        cache=module.apply(variables, memory, lengths, size, beams, method="init_cache"),
    )
    ended = lax.while_loop(goes_on, step, start).ended
    count = settings.samples
    return Decoded(ended.tokens[:, :count], ended.lengths[:, :count], ended.scores[:, :count])


def _with_new(
    state: _State, values: Array, tokens: Array, ends: Array, length: Array, settings: Decoding
) -> _Ended:
    """Ended continuations, with those that end now and are better: the best K of both."""
    ended, beams = state.ended, settings.beams
    # Those beyond the K best only stand in for beams that end.
    new = ends & (jnp.arange(2 * beams) < beams)
    scores = values / length.astype(values.dtype) ** settings.length_penalty
    closed = ~state.improvable
    if settings.early_stopping == "yes":
        closed |= ended.filled.all(-1)
    scores = scores + (~new) * _LOW + closed[:, None] * _LOW
    both = _Ended(
        tokens=jnp.concatenate([ended.tokens, tokens], axis=1),
        lengths=jnp.concatenate([ended.lengths, jnp.full_like(new, length, jnp.int32)], axis=1),
        scores=jnp.concatenate([ended.scores, scores], axis=1),
        filled=jnp.concatenate([ended.filled, new], axis=1),
    )
    _, best = lax.top_k(both.scores, beams)
    return _Ended(*(_taken(part, best) for part in both))


def _can_improve(
    running: Array, ended: _Ended, length: Array, limits: Array, settings: Decoding
) -> Array:
    """[B]: whether an open beam might still displace an ended one."""
    reach = jnp.broadcast_to(length, limits.shape)
    if settings.early_stopping == "never" and settings.length_penalty > 0.0:
        reach = limits
    best = running[:, :1] / reach[:, None].astype(running.dtype) ** settings.length_penalty
    worst = jnp.where(ended.filled, ended.scores.min(-1, keepdims=True), _LOW)
    return (best > worst).any(-1)


def _taken(x: Array, beams: Array) -> Array:
    """x[b, beams[b, i], …]."""
    shaped = beams.reshape(*beams.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, shaped, axis=1)
