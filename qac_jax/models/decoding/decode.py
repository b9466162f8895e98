"""Texts out of a T5 or another writer: greedy or sampled (`slots`), or searched (`beam`).

    settings = Decoding(max_tokens=64, samples=5)
    generated = decode(module, variables, ids, lengths, settings, keys=keys)
    generated.tokens     # [texts, samples, max_tokens], padded behind each end

A text is encoded once and continued `samples` times. The loop stops when all rows have ended.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from qac_jax.models.decoding import beam, slots
from qac_jax.models.decoding.rules import Decoded, Rules
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.layers import Array
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
    rules = Rules(settings, module.config, pieces)
    if settings.method == "beam":
        memory = module.apply(variables, ids, lengths, method="encode")
        return beam.search(module, variables, memory, lengths, limits, rules)
    if keys is None:
        if settings.method == "sample":
            raise ValueError("sampling needs keys: 64 random bits a text")
        keys = jnp.zeros((ids.shape[0], 2), jnp.uint32)
    shared = slots.shared(module, variables)
    texts = slots.start(module, variables, shared, ids, lengths, limits, keys, rules)
    texts = slots.advance(module, variables, shared, texts, ids.shape[0], rules)
    return texts.decoded(settings.samples)
