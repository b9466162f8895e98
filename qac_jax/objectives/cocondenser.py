"""coCondenser: Condenser with a contrastive loss between the texts of a pair (Gao & Callan, 2022).

Both texts of a pair are masked and read by encoder and head. For each of the 2N vectors of the
batch its partner is the positive and all others are negatives: raw dot products, both directions,
no vector is its own candidate (the paper, §3.2). In query-as-context pre-training the pair is a
passage and a generated query (Wu et al., 2023); each text is padded to its own length.
"""

import dataclasses

import jax
import jax.numpy as jnp

from qac_jax.fields import option
from qac_jax.models.backbone import BackboneOutput
from qac_jax.models.encoders import l2_normalize, pooled
from qac_jax.models.heads import POOLINGS
from qac_jax.models.layers import Array
from qac_jax.objectives import contrastive
from qac_jax.objectives.chunked import chunked_encode, first_rows, gathered
from qac_jax.objectives.condenser import Condenser, Predictions
from qac_jax.objectives.mlm import normalised
from qac_jax.objectives.objective import Batch, Loss, Variables, example_keys


_TEXTS = ("passage", "context")


@dataclasses.dataclass(frozen=True)
class CoCondenser(Condenser):
    """Condenser's losses on `passage` and `context`, and the contrastive one between them.

    mlm_scale multiplies the MLM losses: 2 is equivalent to the released gradient cache, with
    mlm_group the number of sequences that a mean is over (a chunk of that cache). negatives_group:
    the number of consecutive pairs that see one another (0: the whole batch). pad_contexts: to the
    passages' length, as released. chunk: pairs encoded at a time. pooling and normalize: how the
    compared vectors are made, the paper's [CLS] as it is, or as the sentence encoder that training
    starts from makes them ("mean", True).
    """

    temperature: float = option(1.0, above=0)
    coefficient: float = 1.0
    mlm_scale: float = 1.0
    mlm_group: int = 0
    negatives_group: int = 0
    pad_contexts: bool = False
    chunk: int = dataclasses.field(default=0, kw_only=True)
    pooling: str = option("cls", choices=POOLINGS)
    normalize: bool = False

    @property
    def splittable(self) -> bool:
        """Vectors of the whole batch see one another."""
        return False

    @property
    def whole(self) -> bool:
        return super().whole or self.pooling != "cls"

    def vector(self, out: BackboneOutput, lengths: Array) -> Array:
        vector = pooled(out, lengths, self.pooling)
        return l2_normalize(vector) if self.normalize else vector

    def prepare(self, batch: Batch, key: Array) -> Batch:
        count, width = batch["passage"].shape
        missing = width - batch["context"].shape[1]
        if self.pad_contexts and missing > 0:
            places = ((0, 0), (0, missing))
            padded = jnp.pad(batch["context"], places, constant_values=self.vocabulary.pad)
            batch = {**batch, "context": padded}
        # For every text one key for masking and one for dropout.
        keys = [example_keys(k, count) for k in jax.random.split(key, 2 * len(_TEXTS))]
        texts = [
            self.masked(batch, name, self.masking, mask_keys)
            for name, mask_keys in zip(_TEXTS, keys, strict=False)
        ]
        ready: Batch = dict(
            zip(_TEXTS, normalised(texts, self.mlm_group, self.examples), strict=True)
        )
        return {**ready, "keys": dict(zip(_TEXTS, keys[len(_TEXTS) :], strict=True))}

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        if self.chunk:
            variables = gathered(variables)

        def encode(part: Batch) -> list[Predictions]:
            return [
                self.predictions(variables, part[name], part["keys"][name] if train else None)
                for name in _TEXTS
            ]

        texts = chunked_encode(encode, batch, self.chunk, self.runtime.kept)
        mlm, aux = self.mlm_terms(texts)
        ranked = self.contrast(*first_rows([text.vector for text in texts], self.examples))
        contrast = jnp.mean(ranked.loss)
        aux |= {"contrastive_loss": contrast, "pair_accuracy": jnp.mean(ranked.correct)}
        return self.mlm_scale * mlm + self.coefficient * contrast, aux

    def contrast(self, passages: Array, contexts: Array) -> contrastive.Ranked:
        """The contrastive loss of every vector, its partner the positive: [N, 2]."""
        return contrastive.all_pairs(
            passages, contexts, temperature=self.temperature, group=self.negatives_group
        )
