"""FLOPs of the models' matrix products, by component, from formulas.

XLA's own count takes a loop's body once, whatever its length, so what reports a rate of FLOPs
divides these by time. A multiplication and an addition are two FLOPs; sums, norms and
activations are left out. Give real lengths (`Load.of`) for the useful work, padded ones
(`Load.padded`) for the work done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from qac_jax.errors import UserError, nearest
from qac_jax.models.bert import BertConfig
from qac_jax.models.layers import REMATERIALISATION
from qac_jax.models.t5 import T5Config
from qac_jax.models.t5_layers import FEED_FORWARD


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
    def padded(cls, texts: int, length: int) -> Load:
        """`texts` rows, all computed at the same length."""
        return cls(texts, float(texts) * length, float(texts) * length * length)


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


def _layer(
    query: Load, key_tokens: float, pairs: float, hidden: int, inner: int, mlp: int
) -> Flops:
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


def _times(flops: Flops, count: int) -> Flops:
    return Flops({name: value * count for name, value in flops.parts.items()})


def _words(vocab_size: int) -> int:
    """The vocabulary as it is computed, padded to a multiple of 128."""
    return vocab_size + -vocab_size % 128


def bert(
    config: BertConfig, load: Load, *, rows: int | None = None, predictions: float = 0
) -> Flops:
    """A BERT over `load`; predictions is the number of positions whose words are predicted.

    rows: the last layer computes only so many positions of every text, as in `Bert.__call__`.
    """
    width, mlp = config.hidden_size, 2 * config.intermediate_size
    whole = _layer(load, load.tokens, load.pairs, width, width, mlp)
    if rows is None:
        total = _times(whole, config.num_layers)
    else:
        first = Load(load.texts, load.texts * rows, 0)
        last = _layer(first, load.tokens, load.tokens * rows, width, width, mlp)
        total = _times(whole, config.num_layers - 1) + last
    if config.pooler:
        total += Flops({"pooler": 2.0 * width * width * load.texts})
    if predictions:
        total += mlm(config, predictions)
    return total


def mlm(config: BertConfig, predictions: float) -> Flops:
    """The MLM head at so many positions."""
    width = config.hidden_size
    return Flops({"mlm_head": 2.0 * predictions * width * (width + _words(config.vocab_size))})


def bidirectional_head(
    config: BertConfig, load: Load, layers: int, predictions: float = 0
) -> Flops:
    """Condenser's head or CoT-MAE's MLM decoder, with the MLM head it shares."""
    total = bert(dataclasses.replace(config, num_layers=layers, pooler=False), load)
    return total + mlm(config, predictions)


def causal_decoder(config: BertConfig, load: Load, layers: int, predictions: float = 0) -> Flops:
    """CoT-MAE's query decoder: MLP of 4 × hidden; a window hides scores but saves none."""
    width = config.hidden_size
    layer = _layer(load, load.tokens, load.pairs, width, width, 8 * width)
    return _times(layer, layers) + mlm(config, predictions)


def classifier(hidden_size: int, labels: int, texts: float) -> Flops:
    """A cross-encoder's output, or a dual encoder's projection to `labels` dimensions."""
    return Flops({"classifier": 2.0 * hidden_size * labels * texts})


def similarities(width: int, queries: float, passages: float) -> Flops:
    """Dot products of every query with every passage."""
    return Flops({"similarities": 2.0 * width * queries * passages})


def t5(config: T5Config, source: Load, target: Load, crossed: float) -> Flops:
    """A T5, teacher-forced; crossed is the sum over texts of source × target length.

    The relative-bias tables, computed once a stack, are left out.
    """
    width, inner = config.d_model, config.num_heads * config.d_kv
    _, gated = FEED_FORWARD[config.feed_forward]
    mlp = (3 if gated else 2) * config.d_ff
    encoder = _layer(source, source.tokens, source.pairs, width, inner, mlp)
    own = _layer(target, target.tokens, target.pairs, width, inner, mlp)
    cross = _layer(target, source.tokens, crossed, width, inner, 0)
    words = {"words": 2.0 * target.tokens * width * _words(config.vocab_size)}
    return (
        _times(encoder, config.num_layers)
        + _times(own + cross, config.num_decoder_layers)
        + Flops(words)
    )
