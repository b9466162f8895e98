"""A dual encoder learns a teacher's ranking of the passages of a group (kind `groups`).

    L = mean over queries of KL( softmax(t / teacher_temperature) || softmax(s / temperature) )

t and s are the teacher's and the student's scores of all passages of the query's group: the
listwise loss of ListNet (Cao et al., ICML 2007), as distillation. A group's passages are encoded
once for all of its queries, so a step sees many queries for the cost of few passages.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from qac_jax.fields import option
from qac_jax.models.layers import fold
from qac_jax.objectives.objective import (
    Aux,
    Batch,
    Variables,
    example_keys,
    global_weights,
)
from qac_jax.objectives.towers import DualEncoderObjective


@dataclasses.dataclass(frozen=True)
class Listwise(DualEncoderObjective):
    """Distillation of a teacher's scores over groups of similar passages."""

    temperature: float = option(0.05, above=0)
    teacher_temperature: float = option(0.02, above=0)

    def verb(self, kind: str) -> str:
        return "finetune"

    @property
    def splittable(self) -> bool:
        """Groups do not see one another."""
        return True

    @property
    def fills(self) -> bool:
        return True

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        """The same groups with dropout keys, and weights that sum to one over the batch."""
        count = batch["query"].shape[0]
        weights = global_weights(jnp.ones(count, bool), self.examples)
        return dict(batch, keys=example_keys(key, count), weights=weights)

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        keys = batch["keys"] if train else None
        queries = self._vectors(variables, batch, "query", keys)
        passages = self._vectors(variables, batch, "passages", keys)
        own = jnp.einsum("gqd,gpd->gqp", queries, passages, precision=lax.Precision.HIGHEST)
        scores = batch["scores"].astype(own.dtype)
        kept = jnp.isfinite(scores)
        teacher = jax.nn.log_softmax(scores / self.teacher_temperature)
        student = jax.nn.log_softmax(jnp.where(kept, own / self.temperature, -jnp.inf))
        gaps = jnp.where(kept, jnp.exp(teacher) * (teacher - student), 0.0)
        divergence = jnp.mean(jnp.sum(gaps, -1), -1)
        agree = jnp.argmax(jnp.where(kept, own, -jnp.inf), -1) == jnp.argmax(scores, -1)
        loss = jnp.sum(batch["weights"] * divergence)
        return loss, {"agreement": jnp.sum(batch["weights"] * jnp.mean(agree, -1))}

    def _vectors(
        self, variables: Variables, batch: Batch, name: str, keys: jax.Array | None
    ) -> jax.Array:
        """[groups, texts, width]; each text derives its dropout key from its group's."""
        ids, side = batch[name], "query" if name == "query" else "passage"
        groups, per, length = ids.shape
        text_keys = None
        if keys is not None:
            of_side = fold(keys, int(side == "passage"))
            numbered = jax.vmap(fold, (None, 0), 1)(of_side, jnp.arange(per))
            text_keys = jnp.reshape(numbered, -1)  # type: ignore[arg-type]
        found = self.model.apply(
            {"params": variables["params"]},
            ids.reshape(-1, length),
            batch[f"{name}_length"].reshape(-1),
            None,
            text_keys,
            side=side,
        )
        return found.reshape(groups, per, -1)
