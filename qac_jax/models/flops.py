"""FLOPs of matrix products, by component: formulas of the parts that networks are made of.

Architectures add them up (`BackboneConfig.flops`, `T5Config.flops`). XLA's own count takes a
loop's body once, whatever its length, so what reports a rate of FLOPs divides these by time. A
multiplication and an addition are two FLOPs; sums, norms and activations are left out. Give real
lengths (`Load.of`) for the useful work, padded ones (`Load.padded`) for the work done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.models.layers import REMATERIALISATION


_LAYER_PARTS = ("projections", "attention", "mlp")


@dataclasses.dataclass(frozen=True)
class Load:
    """A set of texts as the formulas need it: how many, their tokens, their token pairs."""

    texts: float
    tokens: float
    pairs: float

    @classmethod
    def of(cls, lengths: Any) -> Load:
        """Texts of these lengths, without padding."""
        sizes = np.asarray(lengths, np.float64).ravel()
        return cls(sizes.size, float(sizes.sum()), float(np.square(sizes).sum()))

    @classmethod
    def padded(cls, texts: int, length: int, packed: Sequence[tuple[int, float]] = ()) -> Load:
        """`texts` rows, all computed at the same length.

        packed: the room of those computed without padding but for attention (`Runtime.packed`).
        """
        tokens = float(texts) * length
        return cls(texts, tokens * dict(packed).get(length, 1.0), tokens * length)


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of one forward pass by component; backward and recomputation follow from them."""

    parts: Mapping[str, float]

    @property
    def forward(self) -> float:
        """All components together."""
        return sum(self.parts.values())

    @property
    def backward(self) -> float:
        """Each product y = a b has two in the backward pass: one for a, one for b."""
        return 2 * self.forward

    def recomputed(self, remat: str) -> float:
        """What the backward pass computes again under the policy `Runtime.remat`."""
        if remat not in REMATERIALISATION:
            raise UserError(f"remat={remat!r} is not known; {nearest(remat, REMATERIALISATION)}")
        # The policy "dots" keeps products of matrices, not the batched ones of attention.
        again = {"none": (), "layer": _LAYER_PARTS}.get(remat, ("attention",))
        return sum(self.parts.get(part, 0.0) for part in again)

    def training(self, remat: str = "none") -> float:
        """Forward, backward and what is computed again. Model FLOPs (for MFU): remat="none"."""
        return self.forward + self.backward + self.recomputed(remat)

    def __add__(self, other: Flops) -> Flops:
        names = dict.fromkeys([*self.parts, *other.parts])
        return Flops({n: self.parts.get(n, 0.0) + other.parts.get(n, 0.0) for n in names})


def layer(query: Load, key_tokens: float, pairs: float, hidden: int, inner: int, mlp: int) -> Flops:
    """One layer: query tokens that attend to key tokens over `pairs` of them.

    inner is heads × head_dim, mlp the width of all up projections and the down projection.
    """
    return Flops(
        {
            # Query and output projection, key and value projection.
            "projections": 4.0 * hidden * inner * (query.tokens + key_tokens),
            # Scores and value product.
            "attention": 4.0 * inner * pairs,
            "mlp": 2.0 * hidden * mlp * query.tokens,
        }
    )


def times(flops: Flops, count: int) -> Flops:
    """The same `count` times."""
    return Flops({name: value * count for name, value in flops.parts.items()})


def layers(
    load: Load, count: int, hidden: int, inner: int, mlp: int, rows: int | None = None
) -> Flops:
    """`count` encoder layers in which every token sees its whole text (see `layer`).

    rows: the last one computes only this many positions of every text.
    """
    whole = layer(load, load.tokens, load.pairs, hidden, inner, mlp)
    if rows is None:
        return times(whole, count)
    first = Load(load.texts, load.texts * rows, 0)
    last = layer(first, load.tokens, load.tokens * rows, hidden, inner, mlp)
    return times(whole, count - 1) + last


def words(width: int, vocab_size: int, tokens: float) -> Flops:
    """Scores of every word for `tokens` positions; the vocabulary is padded to 128 columns."""
    return Flops({"words": 2.0 * tokens * width * (vocab_size + -vocab_size % 128)})


def pooler(width: int, texts: float) -> Flops:
    """A dense layer of the model's width over one vector of every text."""
    return Flops({"pooler": 2.0 * width * width * texts})


def mlm_head(width: int, vocab_size: int, predictions: float) -> Flops:
    """A dense layer and the scores of all words, at `predictions` positions."""
    scores = words(width, vocab_size, predictions)
    return Flops({"mlm_head": 2.0 * predictions * width * width + scores.forward})


def classifier(hidden_size: int, labels: int, texts: float) -> Flops:
    """A cross-encoder's output, or a dual encoder's projection to `labels` dimensions."""
    return Flops({"classifier": 2.0 * hidden_size * labels * texts})


def similarities(width: int, queries: float, passages: float) -> Flops:
    """Dot products of every query with every passage."""
    return Flops({"similarities": 2.0 * width * queries * passages})
