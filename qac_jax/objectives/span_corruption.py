"""Span corruption: T5's pre-training task (Raffel et al., 2020), made on the device.

    text      Thank you for inviting me to your party last week .
    inputs    Thank you <X> me to your party <Y> week . </s>
    targets   <X> for inviting <Y> last </s>

Per row, `round(density * n)` tokens are noise, in `round(noise / mean_span)` spans; the lengths of
the spans and of the text between them are sampled uniformly among all segmentations. A text starts
with a segment that is kept. Sentinels count down from the top of the vocabulary. As in T5's own
code, rounding is half to even. Every row has its own key.
"""

import dataclasses
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.errors import UserError
from qac_jax.fields import Checked, option
from qac_jax.objectives.objective import Batch, Context, example_keys
from qac_jax.objectives.seq2seq import Seq2Seq


FIRST_SENTINEL = "<extra_id_0>"  # of T5's own vocabulary; the others follow downwards


class Corrupted(NamedTuple):
    """Right-padded inputs and targets of fixed widths."""

    inputs: jax.Array
    inputs_length: jax.Array
    targets: jax.Array
    targets_length: jax.Array  # 0 where a text is too short for any noise


@dataclasses.dataclass(frozen=True)
class SpanNoise(Checked):
    """The share of noise tokens and the mean length of noise spans."""

    density: float = option(0.15, above=0, below=1)
    mean_span: float = option(3.0, at_least=1)

    def counts(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise tokens and noise spans of texts of 0, 1, … `length` tokens."""
        noise, spans = np.zeros(length + 1, np.int32), np.zeros(length + 1, np.int32)
        for n in range(2, length + 1):
            noise[n] = min(max(round(n * self.density), 1), n - 1)
            wanted = max(round(int(noise[n]) / self.mean_span), 1)
            spans[n] = min(wanted, noise[n], n - noise[n])
        return noise, spans

    def widths(self, length: int) -> tuple[int, int]:
        """The longest inputs and targets of texts of up to `length` tokens, end included."""
        noise, spans = self.counts(length)
        kept = np.arange(length + 1) - noise
        return int((kept + spans).max()) + 1, int((noise + spans).max()) + 1

    def mask(self, lengths: jax.Array, keys: jax.Array, width: int) -> jax.Array:
        """Which tokens are noise, bool [B, width]."""
        noise, spans = self.counts(width)
        most = max(1, int(spans.max()))

        def row(n: jax.Array, key: jax.Array) -> jax.Array:
            tokens, pieces = jnp.asarray(noise)[n], jnp.asarray(spans)[n]
            kept_key, noise_key = jax.random.split(key)
            kept = _cut(n - tokens, pieces, kept_key, width, most)
            lost = _cut(tokens, pieces, noise_key, width, most)
            ends = jnp.cumsum(jnp.stack([kept, lost], axis=1).reshape(-1))
            place = jnp.arange(width)
            passed = jnp.sum(ends <= place[:, None], axis=1)
            return (passed % 2 == 1) & (place < n)

        return jax.vmap(row)(lengths, keys)

    def __call__(
        self, ids: jax.Array, lengths: jax.Array, keys: jax.Array, *, top: int, eos: int, pad: int
    ) -> Corrupted:
        """Corrupts texts without their end token; `top` is the first sentinel."""
        width = ids.shape[1]
        lost = self.mask(lengths, keys, width)
        starts = lost & ~jnp.pad(lost, ((0, 0), (1, 0)))[:, :-1]
        span = jnp.cumsum(starts, axis=1) - 1
        sentinel = (top - span).astype(ids.dtype)
        inside = jnp.arange(width) < lengths[:, None]
        noise, spans = jnp.sum(lost, 1), jnp.sum(starts, 1)
        inputs_width, targets_width = self.widths(width)

        kept = (inside & ~lost) | starts
        inputs = jnp.full((ids.shape[0], inputs_width), pad, ids.dtype)
        inputs = _write(inputs, kept, jnp.cumsum(kept, 1) - 1, jnp.where(starts, sentinel, ids))
        targets = jnp.full((ids.shape[0], targets_width), pad, ids.dtype)
        place = jnp.cumsum(lost, 1) + span  # every sentinel so far takes one position
        targets = _write(targets, starts, place - 1, sentinel)
        targets = _write(targets, lost, place, ids)

        inputs_length = lengths - noise + spans
        targets_length = noise + spans
        inputs = jnp.where(jnp.arange(inputs_width) == inputs_length[:, None], eos, inputs)
        targets = jnp.where(jnp.arange(targets_width) == targets_length[:, None], eos, targets)
        some = (spans > 0).astype(jnp.int32)
        return Corrupted(inputs, inputs_length + 1, targets, (targets_length + 1) * some)


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Seq2Seq):
    """Predict the corrupted spans of the feature `tokens`."""

    packs: ClassVar[bool] = False

    noise: SpanNoise = SpanNoise()
    top: int | None = None  # the first sentinel; None: the last row of the model's vocabulary
    sentinels: int = 100

    def bind(self, context: Context) -> Self:
        """With the tokenizer's sentinels, or spare rows of the embedding."""
        bound, tokenizer = super().bind(context), context.tokenizer
        if self.top is not None or tokenizer is None:
            return bound
        top = tokenizer.backend.token_to_id(FIRST_SENTINEL)
        rows, pieces = self.model.config.vocab_size, tokenizer.vocab_size
        if top is None and rows < pieces + self.sentinels:
            raise UserError(
                f"the tokenizer of {pieces} pieces has no {FIRST_SENTINEL}, and vocab_size={rows} "
                f"of the model leaves no room for {self.sentinels} sentinels; set it to "
                f"{pieces + self.sentinels} or more"
            )
        return dataclasses.replace(bound, top=rows - 1 if top is None else top)

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        ids, lengths = batch["tokens"], batch["tokens_length"]
        config = self.model.config
        spans = int(self.noise.counts(ids.shape[1])[1].max())
        if spans > self.sentinels:
            raise UserError(
                f"texts of {ids.shape[1]} tokens lose up to {spans} spans, but there are "
                f"{self.sentinels} sentinels; shorten the texts, lower the density or raise the "
                "mean span"
            )
        last = jnp.take_along_axis(ids, jnp.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
        ended = (last == config.eos_id) & (lengths > 0)
        noise_key, key = jax.random.split(key)
        corrupted = self.noise(
            ids,
            lengths - ended,
            example_keys(noise_key, ids.shape[0]),
            top=config.vocab_size - 1 if self.top is None else self.top,
            eos=config.eos_id,
            pad=config.pad_id,
        )
        return super().prepare(corrupted._asdict(), key)


def _cut(items: jax.Array, pieces: jax.Array, key: jax.Array, width: int, most: int) -> jax.Array:
    """Lengths [most] of a random split of `items` in `pieces` non-empty parts, padded with 0."""
    place = jnp.arange(width)
    # Of the items - 1 boundaries between items, pieces - 1 are chosen.
    between = (place >= 1) & (place < items)
    bits = jax.random.bits(key, (width,), jnp.uint32) >> 1
    order = jnp.argsort(jnp.where(between, bits, jnp.uint32(1 << 31)))
    rank = jnp.zeros(width, jnp.int32).at[order].set(place.astype(jnp.int32), unique_indices=True)
    piece = jnp.cumsum(between & (rank < pieces - 1))
    mine = (piece[:, None] == jnp.arange(most)) & (place < items)[:, None]
    return jnp.sum(mine, axis=0)


def _write(row: jax.Array, which: jax.Array, place: jax.Array, values: jax.Array) -> jax.Array:
    """row[b, place[b, i]] = values[b, i] where which[b, i]."""
    dropped = row.shape[1]
    index = jnp.where(which, place, dropped)
    return jax.vmap(lambda r, i, v: r.at[i].set(v, mode="drop"))(row, index, values)
