"""Texts out of a T5 (or another writer): greedy, sampled (here) or searched (`beam`), in a loop.

    settings = Decoding(max_tokens=64, samples=5)
    generated = decode(module, variables, ids, lengths, settings, keys=keys)
    generated.tokens     # [texts, samples, max_tokens], padded behind each end

A text is encoded once and continued `samples` times. The loop stops when all rows have ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.decoding import beam
from qac_jax.models.decoding import sampling as samples
from qac_jax.models.decoding.rules import Decoded, Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.layers import Array, statistics_dtype
from qac_jax.models.writers import Writer


def decode(
    module: Writer,
    variables: Any,
    ids: Array,
    lengths: Array,
    settings: Decoding,
    *,
    limits: Array | None = None,
    keys: Array | None = None,
    pieces: int = 0,
) -> Decoded:
    """Continuations of each text.

    limits [B]: how many tokens each text's continuations have at most (default: max_tokens).
    keys: 64 random bits a text (uint32 [B, 2]), for sampling. pieces: ids from there on belong to
    no token and are never generated (0: all ids may be).
    """
    if limits is None:
        limits = jnp.full(ids.shape[0], settings.max_tokens, jnp.int32)
    limits = jnp.minimum(limits, settings.max_tokens)
    memory = module.apply(variables, ids, lengths, method="encode")
    rules = Rules(settings, module.config, pieces)
    if settings.method == "beam":
        return beam.search(module, variables, memory, lengths, limits, rules)
    if settings.method == "sample" and keys is None:
        raise ValueError("sampling needs keys: 64 random bits a text")
    return _each(module, variables, memory, lengths, limits, rules, keys)


class _State(NamedTuple):
    tokens: Array
    last: Array
    done: Array
    lengths: Array
    scores: Array
    cache: Any


def _each(
    module: Writer,
    variables: Any,
    memory: Any,
    lengths: Array,
    limits: Array,
    rules: Rules,
    words: Array | None,
) -> Decoded:
    """Rows that know nothing of one another: greedy decoding and sampling."""
    config, settings = module.config, rules.settings
    texts, copies, size = lengths.shape[0], settings.samples, settings.max_tokens
    rows = texts * copies
    row_limits = jnp.repeat(limits, copies)
    keys = None if words is None else samples.row_keys(words, copies)

    def step(state: _State) -> _State:
        position = state.cache.position
        logits, cache = module.apply(variables, state.last, state.cache, method="step")
        scores = rules.allowed(logits, state.tokens, position)
        if settings.method == "sample":
            assert keys is not None
            token = samples.draw(scores, keys, position, settings)
        else:
            token = samples.largest(scores, 1)[1][:, 0].astype(jnp.int32)
        chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
        likelihood = chosen - jax.nn.logsumexp(logits, axis=-1)
        token = jnp.where(state.done, config.pad_id, token)
        return _State(
            tokens=lax.dynamic_update_slice_in_dim(state.tokens, token[:, None], position, 1),
            last=token,
            done=state.done | (token == config.eos_id) | (position + 1 >= row_limits),
            lengths=state.lengths + ~state.done,
            scores=state.scores + jnp.where(state.done, 0.0, likelihood),
            cache=cache,
        )

    cache = module.apply(variables, memory, lengths, size, copies, method="init_cache")
    start = _State(
        tokens=jnp.full((rows, size), config.pad_id, jnp.int32),
        last=jnp.full(rows, config.start_id, jnp.int32),
        done=row_limits < 1,
        lengths=jnp.zeros(rows, jnp.int32),
        scores=jnp.zeros(rows, statistics_dtype(module.runtime.compute_dtype)),
        cache=cache,
    )
    state = lax.while_loop(lambda s: (s.cache.position < size) & ~s.done.all(), step, start)
    return Decoded(
        state.tokens.reshape(texts, copies, size),
        state.lengths.reshape(texts, copies),
        state.scores.reshape(texts, copies),
    )
