"""Which tokens may come next."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.layers import Array


class Decoded(NamedTuple):
    """tokens [B, samples, max_tokens], padded; their number, end included; and scores.

    A score is the sum of the log-likelihoods of the generated tokens, end included, under the model
    itself (no temperature, no cut); a beam's is divided by length ** length_penalty.
    """

    tokens: Array
    lengths: Array
    scores: Array


class Rules(NamedTuple):
    """Which tokens may come next. From the id `pieces` on (0: off) ids belong to no token."""

    settings: Decoding
    config: Any
    pieces: int = 0

    def allowed(self, scores: Array, generated: Array, position: Array) -> Array:
        """Scores [R, vocabulary]: -inf where a token must not follow generated[:, :position].

        position: a number for all rows, or one a row [R].
        """
        settings, position = self.settings, jnp.reshape(position, (-1, 1))
        places = lax.broadcasted_iota(jnp.int32, (1, scores.shape[-1]), 1)
        if 0 < self.pieces < scores.shape[-1]:
            scores = jnp.where(places < self.pieces, scores, -jnp.inf)
        if settings.min_tokens:
            too_soon = (places == self.config.eos_id) & (position < settings.min_tokens)
            scores = jnp.where(too_soon, -jnp.inf, scores)
        if settings.no_repeat_ngram:
            scores = self._without_repeats(scores, generated, position)
        return scores

    def _without_repeats(self, scores: Array, generated: Array, position: Array) -> Array:
        """Hugging Face counts the start token as the first of the text, so this does too."""
        size = self.settings.no_repeat_ngram
        rows = generated.shape[0]
        text = jnp.concatenate(
            [jnp.full((rows, 1), self.config.start_id, generated.dtype), generated], axis=1
        )
        length = position + 1
        windows = text.shape[1] - size + 1
        if windows < 1:
            return scores
        starts = jnp.arange(windows)
        places = jnp.maximum(length - (size - 1), 0) + jnp.arange(size - 1)
        last = jnp.take_along_axis(text, jnp.broadcast_to(places, (rows, size - 1)), axis=1)
        same = starts[None] + size <= length
        for place in range(size - 1):
            same = same & (text[:, place : place + windows] == last[:, place, None])
        same = jnp.broadcast_to(same, (rows, windows))
        following = text[:, size - 1 :]
        penalty = jnp.where(same, -jnp.inf, 0.0).astype(scores.dtype)
        return scores.at[jnp.arange(rows)[:, None], following].add(penalty)
