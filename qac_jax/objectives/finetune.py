"""Fine-tuning a dual encoder: each query's positive passage against all passages of the batch.

InfoNCE with hard negatives in the global view (DPR, coCondenser, CoT-MAE and QAC fine-tune so,
with Tevatron): every query sees the positives and the negatives of its whole group of
queries. Where a teacher scored the passages (kind `triples`, setting `teacher`), a distillation
loss over each query's own passages can be added to it or replace it:

    margin_mse   mean over negatives of ((s+ - s-) - (t+ - t-))²      (Hofstätter et al., 2020)
    kl           KL( softmax(t / teacher_temperature) || softmax(s / temperature) )

Without negatives in the examples (n_passages=1) training uses in-batch negatives alone.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.objectives import chunked, contrastive, towers
from qac_jax.objectives.objective import Aux, Batch, Variables, example_keys
from qac_jax.objectives.towers import DualEncoderObjective


# Odd multipliers of the hash that identifies a passage.
_TOKEN, _PLACE = 0x9E3779B1, 0x85EBCA77


@dataclasses.dataclass(frozen=True)
class Finetune(DualEncoderObjective):
    """Contrastive fine-tuning on triples, with distillation from a teacher's scores if chosen."""

    fills: ClassVar[bool] = True

    smoothing: float = 0.0
    mask_duplicates: bool = True  # copies of a query's positive are not negatives
    negatives_group: int = 0  # consecutive queries that see each other's passages (0: all)
    distillation: str = option("none", choices=("none", "margin_mse", "kl"))
    distillation_weight: float = 1.0
    contrastive_weight: float = 1.0
    teacher_temperature: float = option(1.0, above=0)

    def verb(self, kind: str) -> str:
        return "finetune"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation == "none" and not self.contrastive_weight:
            raise UserError(
                "contrastive_weight=0 leaves nothing to learn from; choose a distillation too"
            )

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        """The same texts with dropout keys, and numbers that are equal for equal passages."""
        if self.distillation != "none" and "scores" not in batch:
            raise UserError(
                f"distillation={self.distillation!r} needs a teacher's scores; tokenize with "
                "--teacher negatives that have them, and set teacher=True in Train.settings"
            )
        if self.distillation == "margin_mse" and batch["passages"].shape[1] < 2:
            raise UserError(
                "distillation='margin_mse' compares with negatives; set n_passages to 2 or more"
            )
        prepared = dict(batch, keys=example_keys(key, batch["query"].shape[0]))
        if self.mask_duplicates:
            prepared["numbers"] = passage_numbers(batch["passages"], batch["passages_length"])
        return prepared

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        keys = batch["keys"] if train else None
        vectors = towers.vectors(self.model, variables, batch, keys, self.chunk)
        known = {name: batch[name] for name in ("numbers", "scores") if name in batch}
        (queries, passages), known = chunked.first_rows((vectors, known), self.examples)
        ranked = contrastive.in_batch(
            queries,
            passages,
            temperature=self.temperature,
            smoothing=self.smoothing if train else 0.0,
            group=self.negatives_group,
            identities=known.get("numbers"),
            rows=self.rows,
        )
        likelihood = jnp.mean(ranked.loss)
        loss = self.contrastive_weight * likelihood
        aux = {"contrastive": likelihood, "accuracy": jnp.mean(ranked.correct)}
        if self.distillation != "none":
            distillation = jnp.mean(self.distilled(queries, passages, known["scores"]))
            loss = loss + self.distillation_weight * distillation
            aux["distillation"] = distillation
        return loss, aux

    def distilled(self, queries: jax.Array, passages: jax.Array, scores: jax.Array) -> jax.Array:
        """The distillation loss of each query [B], given the teacher's scores [B, P]."""
        own = jnp.einsum("bd,bpd->bp", queries, passages, precision=lax.Precision.HIGHEST)
        scores = scores.astype(own.dtype)
        if self.distillation == "margin_mse":
            margins = own[:, :1] - own[:, 1:] - (scores[:, :1] - scores[:, 1:])
            return jnp.mean(jnp.square(margins), axis=-1)
        teacher = jax.nn.log_softmax(scores / self.teacher_temperature)
        student = jax.nn.log_softmax(own / self.temperature)
        return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)


def passage_numbers(ids: jax.Array, lengths: jax.Array) -> jax.Array:
    """A number for each passage of [..., L], the same for the same tokens: uint32 [...].

    Two different passages collide once in 4e9 pairs, which costs one negative.
    """
    place = jnp.arange(ids.shape[-1], dtype=jnp.uint32)
    mixed = (ids.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(_TOKEN)
    mixed = (mixed ^ (mixed >> 15)) * (jnp.uint32(2) * place * jnp.uint32(_PLACE) + jnp.uint32(1))
    mixed = mixed ^ (mixed >> 13)
    real = place < lengths[..., None].astype(jnp.uint32)
    return jnp.sum(jnp.where(real, mixed, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)
