"""A dual encoder learns a teacher's ranking of the passages of a group (kind `groups`).

    L = mean over queries of       alone  KL( p || softmax(s / temperature) )
                             + (1 - alone) KL( p || softmax(s / temperature + lexical b) )
    p = (1 - labels) softmax(t / teacher_temperature) + labels [the passage that the query is of]

t and s are the teacher's and the student's scores of the passages of the query's group, without
those whose teacher's score is not finite: the listwise loss of ListNet (Cao et al., ICML 2007), as
distillation. A group's passages are encoded once for all of its queries, so a step sees many
queries for the cost of few passages.

b is BM25's score, as a share of what the query's words say. Beside it the student learns what BM25
leaves open (Gao et al., ECIR 2021, "Complement lexical retrieval model with semantic residual
embeddings"), which only labels tell: at first its scores beside b are the teacher's.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import xlogy

from qac_jax.fields import option
from qac_jax.models.layers import Array, fold
from qac_jax.objectives.objective import Batch, Loss, Variables, example_keys, global_weights
from qac_jax.objectives.towers import DualEncoderObjective, encoded_texts


@dataclasses.dataclass(frozen=True)
class Listwise(DualEncoderObjective):
    """Distillation of a teacher's scores over groups of similar passages."""

    temperature: float = option(0.05, above=0)
    teacher_temperature: float = option(0.02, above=0)
    labels: float = option(0.0, at_least=0, at_most=1)
    alone: float = option(1.0, at_least=0, at_most=1)
    lexical: float = option(12.5, at_least=0)

    def verb(self, kind: str) -> str:
        return "finetune"

    @property
    def splittable(self) -> bool:
        """Groups do not see one another."""
        return True

    def prepare(self, batch: Batch, key: Array) -> Batch:
        """The same groups with dropout keys, and weights that sum to one over the batch."""
        count = batch["query"].shape[0]
        weights = global_weights(jnp.ones(count, bool), self.examples)
        return dict(batch, keys=example_keys(key, count), weights=weights)

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        keys = batch["keys"] if train else None
        queries, passages = (
            encoded_texts(
                *(self.model, {"params": variables["params"]}, batch[name]),
                *(batch[f"{name}_length"], fold(keys, number)),
                first=0,
                side=side,
            )
            for number, (name, side) in enumerate((("query", "query"), ("passages", "passage")))
        )
        own = jnp.einsum("gqd,gpd->gqp", queries, passages, precision=lax.Precision.HIGHEST)
        own = own / self.temperature
        beside = own + self.lexical * batch["lexical"].astype(own.dtype)
        scores = batch["scores"].astype(own.dtype)
        kept = jnp.isfinite(scores)
        # Finite, since a query may be without any score: then its gradient is 0, not NaN.
        lowest = jnp.finfo(own.dtype).min
        teacher = jax.nn.softmax(jnp.where(kept, scores / self.teacher_temperature, lowest))
        label = jax.nn.one_hot(batch["own"], own.shape[-1], dtype=own.dtype) * kept
        share = self.labels * jnp.sum(label, -1, keepdims=True)
        target = (1 - share) * teacher + share * label

        def divergence(logits: Array) -> Array:
            student = jax.nn.log_softmax(jnp.where(kept, logits, lowest))
            gaps = jnp.where(kept, xlogy(target, target) - target * student, 0.0)
            return jnp.mean(jnp.sum(gaps, -1), -1)

        each = self.alone * divergence(own) + (1 - self.alone) * divergence(beside)
        agree = jnp.argmax(jnp.where(kept, own, lowest), -1) == jnp.argmax(target, -1)
        loss = jnp.sum(batch["weights"] * each)
        return loss, {"agreement": jnp.sum(batch["weights"] * jnp.mean(agree, -1))}
