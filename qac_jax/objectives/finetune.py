"""Fine-tuning a dual encoder: each query's positive passage against all passages of the batch.

InfoNCE with hard negatives in the global view (DPR, coCondenser, CoT-MAE and QAC fine-tune so,
with Tevatron): every query sees the positives and the negatives of its whole group of
queries. Where a teacher scored the passages (kind `triples`, setting `teacher`), the distance
KL( softmax(t / teacher_temperature) || softmax(s / temperature) ) over each query's own passages
can be added to it or replace it (`distillation = "kl"`).

Without negatives in the examples (n_passages=1) training uses in-batch negatives alone.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.layers import Array
from qac_jax.objectives import chunked, contrastive
from qac_jax.objectives.objective import Batch, Loss, Variables
from qac_jax.objectives.towers import Triples


@dataclasses.dataclass(frozen=True)
class Finetune(Triples):
    """Contrastive fine-tuning on triples, with distillation from a teacher's scores if chosen."""

    smoothing: float = 0.0
    distillation: str = option("none", choices=("none", "kl"))
    distillation_weight: float = 1.0
    contrastive_weight: float = 1.0
    teacher_temperature: float = option(1.0, above=0)

    def verb(self, kind: str) -> str:
        return "finetune"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation == "none" and not self.contrastive_weight:
            raise UserError("contrastive_weight=0 leaves nothing to learn; choose a distillation")

    def prepare(self, batch: Batch, key: Array) -> Batch:
        if self.distillation != "none" and "scores" not in batch:
            raise UserError(
                f"distillation={self.distillation!r} needs a teacher's scores; tokenize with "
                "--teacher negatives that have them, and set teacher=True in Train.settings"
            )
        return super().prepare(batch, key)

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        queries, passages, numbers = self.encoded(variables, batch, train)
        ranked = contrastive.in_batch(
            queries,
            passages,
            temperature=self.temperature,
            smoothing=self.smoothing if train else 0.0,
            group=self.negatives_group,
            identities=numbers,
            rows=self.rows,
        )
        likelihood = jnp.mean(ranked.loss)
        loss = self.contrastive_weight * likelihood
        aux = {"contrastive": likelihood, "accuracy": jnp.mean(ranked.correct)}
        if self.distillation != "none":
            scores = chunked.first_rows(batch["scores"], self.examples)
            distillation = jnp.mean(self.distilled(queries, passages, scores))
            loss = loss + self.distillation_weight * distillation
            aux["distillation"] = distillation
        return loss, aux

    def distilled(self, queries: Array, passages: Array, scores: Array) -> Array:
        """The distillation loss of each query [B], given the teacher's scores [B, P]."""
        own = jnp.einsum("bd,bpd->bp", queries, passages, precision=lax.Precision.HIGHEST)
        teacher = jax.nn.log_softmax(scores.astype(own.dtype) / self.teacher_temperature)
        student = jax.nn.log_softmax(own / self.temperature)
        return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
