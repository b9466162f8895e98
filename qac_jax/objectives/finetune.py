"""Fine-tuning a dual encoder: queries find their passage among all passages of the batch.

InfoNCE with hard negatives in the global view (DPR, coCondenser, CoT-MAE and QAC fine-tune so,
with Tevatron): every query sees the positives and the negatives of its whole group of
queries. Where a teacher scored the passages (kind `triples`, setting `teacher`), a distillation
loss over each query's own passages may stand beside it or in its place:

    margin_mse   mean over negatives of ((s+ - s-) - (t+ - t-))²      (Hofstätter et al., 2020)
    kl           KL( softmax(t / teacher_temperature) || softmax(s / temperature) )

A dual encoder without negatives in its examples (n_passages=1) is trained on in-batch ones alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.errors import UserError, nearest
from qac_jax.models import flops
from qac_jax.models.encoders import DualEncoder
from qac_jax.objectives import contrastive, towers
from qac_jax.objectives.objective import Aux, Batch, Spec, Variables, example_keys
from qac_jax.objectives.token_loss import check_vocabulary


DISTILLATIONS = ("none", "margin_mse", "kl")

# Odd numbers without a pattern: a passage's number is a sum of products with them.
_TOKEN, _PLACE = 0x9E3779B1, 0x85EBCA77


@dataclasses.dataclass(frozen=True)
class Finetune:
    """Query vectors near the vectors of their passages, far from all others."""

    model: DualEncoder
    temperature: float = 1.0
    smoothing: float = 0.0
    mask_duplicates: bool = True  # copies of a query's positive in the batch are no negatives
    negatives_group: int = 0  # so many consecutive queries see each other's passages (0: all)
    distillation: str = "none"
    distillation_weight: float = 1.0
    contrastive_weight: float = 1.0
    teacher_temperature: float = 1.0
    rows: int = 0  # queries whose scores are in memory together (0: all)
    chunk: int = 0  # queries (with their passages) encoded at a time (0: all)
    splittable: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.distillation not in DISTILLATIONS:
            raise UserError(
                f"distillation={self.distillation!r} is not known; "
                + nearest(self.distillation, DISTILLATIONS)
            )
        if self.temperature <= 0 or self.teacher_temperature <= 0:
            raise UserError(
                f"temperature={self.temperature} and teacher_temperature="
                f"{self.teacher_temperature}; expected numbers above 0"
            )
        if self.distillation == "none" and not self.contrastive_weight:
            raise UserError(
                "contrastive_weight=0 leaves nothing to learn from; choose a distillation too"
            )

    def with_tokenizer(self, tokenizer: Any) -> Finetune:
        """This objective for texts of that tokenizer."""
        check_vocabulary(tokenizer.vocab_size, self.model.config.bert.vocab_size)
        return self

    def start_from(self, module: Any, params: Any) -> tuple[Finetune, Any]:
        """From a BERT (both towers start as it), or on from a dual encoder."""
        model, params = towers.started(self.model, module, params)
        return dataclasses.replace(self, model=model), params

    def init(self, key: jax.Array) -> Variables:
        return towers.initial(self.model, key)

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        """The same texts with keys of dropout, and numbers that tell equal passages."""
        if self.distillation != "none" and "scores" not in batch:
            raise UserError(
                f"distillation={self.distillation!r} needs a teacher's scores; tokenize with "
                "--teacher negatives that hold them, and set teacher=True in Train.settings"
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
        del key  # every example brings its own
        keys = batch["keys"] if train else None
        queries, passages = towers.vectors(self.model, variables, batch, keys, self.chunk)
        ranked = contrastive.in_batch(
            queries,
            passages,
            temperature=self.temperature,
            smoothing=self.smoothing if train else 0.0,
            group=self.negatives_group,
            identities=batch.get("numbers"),
            rows=self.rows,
        )
        likelihood = jnp.mean(ranked.loss)
        loss = self.contrastive_weight * likelihood
        aux = {"contrastive": likelihood, "accuracy": jnp.mean(ranked.correct)}
        if self.distillation != "none":
            apart = jnp.mean(self.distilled(queries, passages, batch["scores"]))
            loss = loss + self.distillation_weight * apart
            aux["distillation"] = apart
        return loss, aux

    def distilled(self, queries: jax.Array, passages: jax.Array, scores: jax.Array) -> jax.Array:
        """How far each query's own scores are from the teacher's [B, P], a number a query."""
        own = jnp.einsum("bd,bpd->bp", queries, passages, precision=lax.Precision.HIGHEST)
        scores = scores.astype(own.dtype)
        if self.distillation == "margin_mse":
            margins = own[:, :1] - own[:, 1:] - (scores[:, :1] - scores[:, 1:])
            return jnp.mean(jnp.square(margins), axis=-1)
        teacher = jax.nn.log_softmax(scores / self.teacher_temperature)
        student = jax.nn.log_softmax(own / self.temperature)
        return jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)

    def encoder(self, variables: Variables) -> Variables:
        """The whole dual encoder."""
        return {"params": variables["params"]}

    def flops(self, spec: Spec) -> float:
        """Model FLOPs of a training step over padded texts."""
        queries, seen = spec["query"].shape[0], spec["passages"].shape[:2]
        rows = self.negatives_group or queries
        scores = flops.similarities(self.model.config.width, queries, rows * seen[1])
        return towers.training_flops(self.model, spec) + scores.training()


def passage_numbers(ids: jax.Array, lengths: jax.Array) -> jax.Array:
    """A number for each passage of [..., L], the same for the same tokens: uint32 [...].

    Two different passages share one once in four thousand million pairs: then one negative less.
    """
    place = jnp.arange(ids.shape[-1], dtype=jnp.uint32)
    mixed = (ids.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(_TOKEN)
    mixed = (mixed ^ (mixed >> 15)) * (jnp.uint32(2) * place * jnp.uint32(_PLACE) + jnp.uint32(1))
    mixed = mixed ^ (mixed >> 13)
    real = place < lengths[..., None].astype(jnp.uint32)
    return jnp.sum(jnp.where(real, mixed, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)
