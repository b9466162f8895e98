"""Whole-word masking on the device (BERT's, as sampled by Condenser's released code).

A word is a WordPiece token and the continuation pieces (`##…`) after it, or in a vocabulary that
marks spaces (`Ġ…`, `▁…`) a piece with that mark and those without after it. Each row may mask
`min(512, max(1, round(rate * tokens)))` tokens, [CLS] and [SEP] not counted. Words are visited
in random order; one that would exceed the budget is skipped, and a later, smaller one may still
fit. So a word larger than the budget is never masked, and a row may have nothing to predict.
Every row has its own key, so that splitting or sharding a batch changes nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qac_jax.fields import Checked, option
from qac_jax.models.layers import Array


MAX_PREDICTIONS = 512
_WORDS_A_KERNEL = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The facts about a vocabulary that masking needs."""

    continuation: np.ndarray  # bool [V]: the piece continues a word
    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> Self:
        roles = {role: tokenizer.special(role) for role in ("pad", "unk", "cls", "sep", "mask")}
        return cls(np.asarray(tokenizer.continuation, bool), **roles)

    @property
    def size(self) -> int:
        return len(self.continuation)

    @property
    def special(self) -> tuple[int, ...]:
        return (self.pad, self.unk, self.cls, self.sep, self.mask)


class MaskedText(NamedTuple):
    """Texts with masked words and the labels to predict, examples first; each row has M positions,
    its predictions first, then padding (weight 0)."""

    ids: Array  # int32 [B, L], with replacements
    lengths: Array  # int32 [B]
    positions: Array  # int32 [B, M]
    labels: Array  # int32 [B, M]
    weights: Array  # float32 [B, M]; 1 or 0 until `mlm.shared` normalises them


@dataclasses.dataclass(frozen=True)
class Masking(Checked):
    """The rule: the share of tokens to mask, and how [UNK] is treated.

    `condenser` never masks [UNK], and a continuation piece after one belongs to the word before
    it. For `cotmae_qc` an [UNK] is a word like any other; when it is sampled it uses budget but
    is neither replaced nor predicted.
    """

    rate: float = option(0.15, above=0, below=1)
    variant: str = option("condenser", choices=("condenser", "cotmae_qc"))

    def budgets(self, length: int) -> np.ndarray:
        """Budgets for 0, 1, … `length` tokens as a table, rounded as in Python (half to even)."""
        return np.array(
            [min(MAX_PREDICTIONS, max(1, round(n * self.rate))) for n in range(length + 1)],
            np.int32,
        )

    def max_predictions(self, length: int) -> int:
        """M: the most tokens that a row of `length` tokens can mask."""
        return int(self.budgets(length)[-1])

    def select(self, ids: Array, lengths: Array, keys: Array, vocabulary: Vocabulary) -> Array:
        """Which tokens belong to sampled words, bool [B, L] (sampled [UNK] included)."""
        return self._select(ids, lengths, random_bits(keys, ids.shape[-1])[0], vocabulary)

    def _select(self, ids: Array, lengths: Array, order: Array, vocabulary: Vocabulary) -> Array:
        length = ids.shape[-1]
        continuation = jnp.asarray(vocabulary.continuation)[ids]
        inside = jnp.arange(length) < lengths[:, None]
        frame = _is_one_of(ids, (vocabulary.cls, vocabulary.sep))
        unmasked = _is_one_of(ids, vocabulary.special) if self.variant == "condenser" else frame
        budget = jnp.asarray(self.budgets(length))[jnp.sum(inside & ~frame, axis=-1)]
        return jax.vmap(_select_row)(inside & ~unmasked, continuation, budget, order)

    def __call__(
        self, ids: Array, lengths: Array, keys: Array, vocabulary: Vocabulary
    ) -> MaskedText:
        """Samples words, replaces their tokens, and lists the predictions.

        A row's key must be used for nothing else.
        """
        order, chance, other = random_bits(keys, ids.shape[-1])
        selected = self._select(ids, lengths, order, vocabulary)
        selected &= ~_is_one_of(ids, vocabulary.special)
        masked = jnp.where(selected, replaced(ids, chance, other, vocabulary), ids)
        positions, weights = _first_places(selected, self.max_predictions(ids.shape[-1]))
        labels = jnp.take_along_axis(ids, positions, axis=-1)
        return MaskedText(masked, lengths, positions, labels, weights)


def random_bits(keys: Array, length: int) -> Array:
    """All the randomness of each row, uint32 [3, B, L]: order of words, replacement, random id."""
    bits = jax.vmap(lambda key: jax.random.bits(key, (3, length), jnp.uint32))(keys)
    return jnp.swapaxes(bits, 0, 1)


def replaced(ids: Array, chance: Array, other: Array, vocabulary: Vocabulary) -> Array:
    """The replacement of each token: 80 % [MASK], 10 % a random id, 10 % the token itself."""
    # Uniform over the whole vocabulary: special ids, [MASK] and the token itself included. The
    # modulo favours no id by more than 1 in 2^32 / V.
    drawn = (other % jnp.uint32(vocabulary.size)).astype(ids.dtype)
    drawn = jnp.where(chance < jnp.uint32(round(0.9 * 2**32)), drawn, ids)
    return jnp.where(chance < jnp.uint32(round(0.8 * 2**32)), vocabulary.mask, drawn)


def _is_one_of(ids: Array, values: Sequence[int]) -> Array:
    return jnp.any(ids[..., None] == jnp.asarray(values, ids.dtype), axis=-1)


def _select_row(candidate: Array, continuation: Array, budget: Array, order: Array) -> Array:
    length = candidate.shape[0]
    place = jnp.arange(length, dtype=jnp.int32)
    seen = jnp.cumsum(candidate, dtype=jnp.int32)
    # The first candidate opens a word even if it is a continuation piece (a cropped text).
    opens = candidate & (~continuation | (seen == 1))
    before_next = lax.cummin(jnp.where(opens, seen - 1, length), reverse=True)
    before_next = jnp.append(before_next[1:], length)
    size = jnp.where(opens, jnp.minimum(before_next, seen[-1]) - (seen - 1), 0)

    order = jnp.where(opens, order, jnp.uint32(0xFFFFFFFF))
    _, size, place_in_order = lax.sort((order, size, place), num_keys=1)
    taken_in_order = _take_what_fits(size, budget)
    taken = jnp.zeros(length, bool).at[place_in_order].set(taken_in_order, unique_indices=True)
    word = lax.cummax(jnp.where(opens, place, 0))
    return candidate & taken[word]


def _take_what_fits(size: Array, budget: Array) -> Array:
    """Visits words in order and takes each that still fits (size 0: not a word)."""

    def visit(room: Array, word: Array) -> tuple[Array, Array]:
        taken = (word > 0) & (word <= room)
        return room - jnp.where(taken, word, 0), taken

    # Unrolled, so that a GPU runs many words in one kernel.
    return lax.scan(visit, budget, size, unroll=_WORDS_A_KERNEL)[1]


def _first_places(selected: Array, most: int) -> tuple[Array, Array]:
    """Positions of the true entries of each row, ascending, padded with 0 to `most` columns."""
    length = selected.shape[-1]
    place = jnp.where(selected, jnp.arange(length, dtype=jnp.int32), length)
    place = lax.sort(place, dimension=-1)[:, :most]
    real = place < length
    return jnp.where(real, place, 0), real.astype(jnp.float32)
