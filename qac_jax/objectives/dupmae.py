"""DupMAE: RetroMAE, whose other tokens' states predict the bag of words (Liu et al., 2023,
"RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented Language Models").

To RetroMAE's two losses (its encoder's masked words, and the text that a decoder of one layer
reconstructs from [CLS]) comes a third. The states h_x of the masked text's tokens but [CLS] are
projected to the vocabulary, and the largest of all tokens' scores is kept for each word:

    μ[v] = max over x of (W h_x)[v]
    loss = mean over the words v of the text of  -log softmax(μ)[v]

A word counts once, however often it occurs. The paper adds the words' losses up; as in the released
code the mean is taken, so that long texts do not outweigh the other losses. W is the MLM head, as
there (in the paper a matrix of its own, which nothing else would train).

Only [CLS] or another pooling becomes the vector of a retriever here. The paper also keeps the
largest entries of μ as a lexical half of the representation, whose products are those of words.

On pairs the words may be those of the context (`bag = "context"`): the tokens of a passage then say
what is asked about it.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qac_jax.fields import option
from qac_jax.models.layers import Array
from qac_jax.objectives.objective import Batch, Loss, Variables, of_examples
from qac_jax.objectives.retromae import RetroMae, text_names


class Bag(NamedTuple):
    """Texts and how much each of their tokens' words counts; examples first."""

    ids: Array  # [B, L]
    weights: Array  # [B, L]; the same wherever a word stands, 0 for what is no word
    lengths: Array  # [B]; of the encoded texts


@dataclasses.dataclass(frozen=True)
class DupMae(RetroMae):
    """RetroMAE's losses, and that of the bag of words.

    bag: whose words, those of the text that is encoded or of the context that is reconstructed.
    """

    bag_coefficient: float = option(1.0, at_least=0)
    bag: str = option("text", choices=("text", "context"))

    def prepare(self, batch: Batch, key: Array) -> Batch:
        source, target = text_names(batch)
        name = source if self.bag == "text" else target
        weights = self.word_weights(batch[name], batch[f"{name}_length"])
        bag = Bag(batch[name], weights, batch[f"{source}_length"])
        return {**super().prepare(batch, key), "bag": bag}

    def word_weights(self, ids: Array, lengths: Array) -> Array:
        """[B, L]: 1 / (distinct words of the text · texts with words); sums over words to one."""
        vocabulary, place = self.vocabulary, jnp.arange(ids.shape[1])
        words = (place < lengths[:, None]) & (ids != vocabulary.cls) & (ids != vocabulary.sep)
        words &= of_examples(len(ids), self.examples)[:, None]
        before = place < place[:, None]
        repeated = (ids[:, None] == ids[:, :, None]) & words[:, None] & before
        distinct = jnp.sum(words & ~repeated.any(-1), axis=1, dtype=float)
        texts = jnp.maximum(jnp.sum(distinct > 0, dtype=float), 1.0)
        return words / (jnp.maximum(distinct, 1.0) * texts)[:, None]

    def further(self, variables: Variables, hidden: Array, batch: Batch) -> Loss:
        bag: Bag = batch["bag"]
        loss = jnp.sum(self.bag_loss(variables, hidden, bag))
        return self.bag_coefficient * loss, {"bag_loss": loss}

    def bag_loss(self, variables: Variables, hidden: Array, bag: Bag) -> Array:
        """The loss of each text [B] given the states [B, L, D]."""
        scores = self.module.apply(variables, hidden, padded=True, method="mlm_logits")
        place = jnp.arange(scores.shape[1])
        ordinary = (place > 0) & (place < bag.lengths[:, None])
        lowest = jnp.finfo(scores.dtype).min
        largest = jnp.max(jnp.where(ordinary[..., None], scores, lowest), axis=1)
        # The words' weights side by side, so that the loss needs no gather with its gradient.
        rows = jnp.arange(len(bag.ids))[:, None]
        weights = jnp.zeros(largest.shape, bag.weights.dtype).at[rows, bag.ids].max(bag.weights)
        log_z = jax.nn.logsumexp(largest, axis=-1)
        return jnp.sum(weights * (log_z[:, None] - largest), axis=-1)
