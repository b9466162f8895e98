"""How texts are continued: the settings, and what may be said next."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError, nearest
from qac_jax.models.decoding.sampling import Sampling
from qac_jax.models.layers import Array


METHODS = ("sample", "greedy", "beam")
EARLY_STOPPING = ("no", "yes", "never")


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How texts are continued; the names are Hugging Face's where it has one.

    max_tokens counts what is said, the end included, the start token not: Hugging Face's
    max_length is one more. pieces: ids from there on belong to no token and are never said.
    """

    method: str = "sample"
    max_tokens: int = 64
    samples: int = 1
    sampling: Sampling = Sampling()
    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: str = "no"
    min_tokens: int = 0
    no_repeat_ngram: int = 0
    pieces: int = 0

    def __post_init__(self) -> None:
        for name, valid in (("method", METHODS), ("early_stopping", EARLY_STOPPING)):
            value = getattr(self, name)
            if value not in valid:
                raise UserError(f"{name}={value!r} is not known; {nearest(str(value), valid)}")
        if self.max_tokens < 1 or self.samples < 1 or self.beams < 1:
            raise UserError(
                f"max_tokens={self.max_tokens}, samples={self.samples}, beams={self.beams}; "
                "expected 1 or more of each"
            )
        if self.method == "greedy" and self.samples > 1:
            raise UserError(
                f"samples={self.samples} of greedy decoding would all be the same; choose "
                "samples=1, or method='sample'"
            )
        if self.method == "beam" and self.samples > self.beams:
            raise UserError(
                f"samples={self.samples} are more than beams={self.beams}; search with more beams"
            )
        if min(self.min_tokens, self.no_repeat_ngram, self.pieces) < 0:
            raise UserError("min_tokens, no_repeat_ngram and pieces are counts; expected 0 or more")


class Decoded(NamedTuple):
    """tokens [B, samples, max_tokens], padded; how many are said, the end included; and scores.

    A score is the sum of the log-likelihoods of what is said, the end included, under the model
    itself (no temperature, nothing cut off); a beam's is divided by length ** length_penalty.
    """

    tokens: Array
    lengths: Array
    scores: Array


class Rules(NamedTuple):
    """What may be said next, and when a row ends."""

    settings: Decoding
    config: Any

    def allowed(self, scores: Array, said: Array, position: Array) -> Array:
        """Scores [R, vocabulary] with -inf where a token must not follow said[:, :position]."""
        settings = self.settings
        places = lax.broadcasted_iota(jnp.int32, (1, scores.shape[-1]), 1)
        if 0 < settings.pieces < scores.shape[-1]:
            scores = jnp.where(places < settings.pieces, scores, -jnp.inf)
        if settings.min_tokens:
            too_soon = (places == self.config.eos_id) & (position < settings.min_tokens)
            scores = jnp.where(too_soon, -jnp.inf, scores)
        if settings.no_repeat_ngram:
            scores = self._without_repeats(scores, said, position)
        return scores

    def _without_repeats(self, scores: Array, said: Array, position: Array) -> Array:
        """Hugging Face counts the start token as the first of the text, so this does too."""
        size = self.settings.no_repeat_ngram
        rows = said.shape[0]
        text = jnp.concatenate(
            [jnp.full((rows, 1), self.config.start_id, said.dtype), said], axis=1
        )
        length = position + 1
        windows = text.shape[1] - size + 1
        if windows < 1:
            return scores
        starts = jnp.arange(windows)
        last = lax.dynamic_slice_in_dim(text, length - (size - 1), size - 1, axis=1)
        same = starts[None] + size <= length
        for place in range(size - 1):
            same = same & (text[:, place : place + windows] == last[:, place, None])
        same = jnp.broadcast_to(same, (rows, windows))
        following = text[:, size - 1 :]
        penalty = jnp.where(same, -jnp.inf, 0.0).astype(scores.dtype)
        return scores.at[jnp.arange(rows)[:, None], following].add(penalty)
