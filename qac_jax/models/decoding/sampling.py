"""The next token: which may come, and drawing it: temperature, top-k, top-p, as Hugging Face does.

The noise of a token is a function of (row key, step, token) and of nothing else, so a row's text
does not depend on the rows beside it, on their number, or on the device.

Only the few most probable tokens are looked at where that is provably the same: XLA sorts whole
vocabularies slowly (32k pieces: 60 times the time of the matrix product before it).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.models.decoding.settings import Decoding, Sampling
from qac_jax.models.layers import Array


# Tokens beyond the k-th that are looked at to see whether they tie with it.
_SPARE = 7
# Where only the nucleus cuts: it rarely holds more tokens than these.
_NUCLEUS = 256
_BLOCK = 128


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


def row_keys(words: Array, copies: int) -> Array:
    """Keys [B · copies] from 64 bits a text (uint32 [B, 2]) and the number of the copy."""
    keys = jax.random.wrap_key_data(words, impl="threefry2x32")
    numbered = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    return numbered(keys, jnp.arange(copies)).reshape(-1)


def draw(logits: Array, keys: Array, step: Array, sampling: Sampling) -> Array:
    """One token a row [R] of logits [R, vocabulary]; step: of all rows, or one a row [R]."""
    keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(step, keys.shape))
    scaled = logits.astype(jnp.float32) / sampling.temperature
    size = scaled.shape[-1]
    width = min(size, sampling.top_k + _SPARE if sampling.top_k else _NUCLEUS)
    if width == size or not sampling.top_k and sampling.top_p == 1.0:
        return _drawn_of_all(scaled, keys, sampling)
    values, tokens = largest(scaled, width)
    keep, certain = _kept_of_largest(scaled, values, sampling)
    return lax.cond(
        certain.all(),
        lambda: _winner(jnp.where(keep, values, -jnp.inf), tokens, keys),
        lambda: _drawn_of_all(scaled, keys, sampling),
    )


def kept(scaled: Array, sampling: Sampling) -> Array:
    """Which tokens can be drawn, of scores that are divided by the temperature already.

    Tokens that tie with the last one that is kept are kept too.
    """
    keep = jnp.ones(scaled.shape, bool)
    if 0 < sampling.top_k < scaled.shape[-1]:
        keep = scaled >= largest(scaled, sampling.top_k)[0][..., -1:]
    if sampling.top_p < 1.0:
        # Renormalised after top-k: mass that is not kept is not counted.
        weights = jnp.where(keep, jnp.exp(scaled - scaled.max(-1, keepdims=True)), 0.0)
        keep &= scaled >= _nucleus_border(scaled, weights, sampling.top_p)
    return keep


def largest(x: Array, count: int) -> tuple[Array, Array]:
    """lax.top_k of [R, size]: the tokens lie in those blocks that have the greatest maxima."""
    rows, size = x.shape
    if size < 8 * _BLOCK or count * _BLOCK * 2 > size:
        return _top_k(x, count)
    padding = -size % _BLOCK
    blocks = jnp.pad(x, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    blocks = blocks.reshape(rows, -1, _BLOCK)
    chosen = _top_k(blocks.max(-1), count)[1]
    inside = jnp.take_along_axis(blocks, chosen[..., None], axis=1).reshape(rows, -1)
    values, places = _top_k(inside, count)
    block = jnp.take_along_axis(chosen, places // _BLOCK, axis=1)
    return values, block * _BLOCK + places % _BLOCK


def _top_k(x: Array, count: int) -> tuple[Array, Array]:
    """lax.top_k, behind a barrier: sliced, XLA's CPU code turns it into a sort of everything.

    A barrier each, because XLA's partitioner dies of one around both.
    """
    values, places = lax.top_k(x, count)
    return lax.optimization_barrier(values), lax.optimization_barrier(places)


def _kept_of_largest(scaled: Array, values: Array, sampling: Sampling) -> tuple[Array, Array]:
    """`kept` for the largest values, and whether (a row) no token beyond them is kept."""
    keep = jnp.ones(values.shape, bool)
    border = values[:, -1:]
    weights = jnp.exp(values - values[:, :1])
    if sampling.top_k:
        border = values[:, sampling.top_k - 1 : sampling.top_k]
        keep = values >= border
        weights = jnp.where(keep, weights, 0.0)
        total = weights.sum(-1, keepdims=True)
    else:
        total = jnp.exp(scaled - values[:, :1]).sum(-1, keepdims=True)
    certain = values[:, -1:] < border
    if sampling.top_p < 1.0:
        before = jnp.cumsum(weights, -1) - weights
        inside = keep & (before < sampling.top_p * total)
        nucleus = jnp.where(inside, values, jnp.inf).min(-1, keepdims=True)
        keep &= values >= nucleus
        certain |= values[:, -1:] < nucleus
    return keep, certain[:, 0]


def _nucleus_border(x: Array, weights: Array, mass: float) -> Array:
    """[…, 1]: the least x that is kept, the one before which less than `mass` of the weight lies.

    Found bit by bit: floats that are mapped to integers of the same order.
    """
    need = mass * weights.sum(-1, keepdims=True)
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    negative = bits >> 31 == 1
    order = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        above = jnp.where(order > middle, weights, 0.0).sum(-1, keepdims=True)
        inside = above < need
        return jnp.where(inside, low, middle + 1), jnp.where(inside, middle, high)

    shape = (*x.shape[:-1], 1)
    bounds = (jnp.zeros(shape, jnp.uint32), jnp.full(shape, 0xFFFFFFFF, jnp.uint32))
    threshold, _ = lax.fori_loop(0, 32, halve, bounds)
    back = jnp.where(threshold >> 31 == 1, threshold & jnp.uint32(0x7FFFFFFF), ~threshold)
    return lax.bitcast_convert_type(back, jnp.float32)


def _drawn_of_all(scaled: Array, keys: Array, sampling: Sampling) -> Array:
    tokens = jnp.broadcast_to(jnp.arange(scaled.shape[-1]), scaled.shape)
    return _winner(jnp.where(kept(scaled, sampling), scaled, -jnp.inf), tokens, keys)


def _winner(scores: Array, tokens: Array, keys: Array) -> Array:
    """The token whose score with Gumbel noise is the largest: a draw from their softmax."""
    place = (scores + _gumbel(keys, tokens)).argmax(-1, keepdims=True)
    return jnp.take_along_axis(tokens, place, axis=-1)[:, 0].astype(jnp.int32)


def _gumbel(keys: Array, tokens: Array) -> Array:
    """Noise of each row's tokens [R, W]: every (key, token) has its own."""

    def bits(key: Array, token: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(key, token))[0]

    words = jax.vmap(jax.vmap(bits, (None, 0)))(keys, tokens)
    uniform = ((words >> 8).astype(jnp.float32) + 0.5) * 2.0**-24
    return -jnp.log(-jnp.log(uniform))
