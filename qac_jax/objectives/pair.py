"""PAIR: passages near the query that they answer, far from passages that do not (Ren et al., 2021).

    L = (1 - α) L_Q + α L_P

L_Q (eq. 3) is the usual loss: a query's positive passage against all others. L_P (eq. 5) takes the
positive passage as the anchor: its query must be nearer than negative passages are. The paper's
text and its code differ in what the negatives are, so `denominator` chooses one of four variants.
Of the batch, queries are q, positives p⁺ and hard negatives p⁻:

    name                      L_Q: own p⁺ against        L_P: own q against
    paper_inbatch_and_hard    all other p⁺, all p⁻       all other p⁺, all p⁻
    hard_from_all_only        all other p⁺, all p⁻       all p⁻
    own_hard_only             own p⁻                     own p⁻
    official_code             all other p⁺, all p⁻       all other q, all p⁻

Scores are dot products, over a `temperature` for vectors of length one (the paper has neither).
With vectors of zeros both losses of `official_code` are the logarithm of the number of
candidates: ln(2 B) with one hard negative each.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.layers import Array
from qac_jax.objectives import contrastive
from qac_jax.objectives.contrastive import Ranked
from qac_jax.objectives.objective import Batch, Loss, Variables
from qac_jax.objectives.towers import Triples


DENOMINATORS = ("paper_inbatch_and_hard", "hard_from_all_only", "own_hard_only", "official_code")


@dataclasses.dataclass(frozen=True)
class Pair(Triples):
    """Queries with their passages, the positive first. α = 0 is the second stage: L_Q alone. A
    negatives_group of 0 is PAIR's cross-batch negatives."""

    alpha: float = option(0.1, at_least=0, at_most=1)
    denominator: str = option("paper_inbatch_and_hard", choices=DENOMINATORS)

    def verb(self, kind: str) -> str:
        return "pretrain" if self.alpha else "finetune"

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        queries, passages, numbers = self.encoded(variables, batch, train)
        options: Any = {"numbers": numbers, "group": self.negatives_group}
        options |= {"rows": self.rows, "temperature": self.temperature}
        by_query = query_centric(queries, passages, self.denominator, **options)
        loss = by_query.loss.mean()
        aux = {"query_loss": loss, "accuracy": by_query.correct.mean()}
        if self.alpha:
            by_passage = passage_centric(queries, passages, self.denominator, **options)
            passage_loss = by_passage.loss.mean()
            loss = (1.0 - self.alpha) * loss + self.alpha * passage_loss
            aux |= {"passage_loss": passage_loss, "passage_accuracy": by_passage.correct.mean()}
        return loss, aux


def query_centric(
    queries: Array,
    passages: Array,
    denominator: str,
    *,
    numbers: Array | None = None,
    group: int = 0,
    **options: Any,
) -> Ranked:
    """L_Q of each query: queries [B, D], passages [B, P, D] with the positive first.

    numbers [B, P] are the same for the same passage: copies of the positive are not negatives.
    options: see `contrastive.softmax_loss`.
    """
    group = 1 if denominator == "own_hard_only" else group
    return contrastive.in_batch(queries, passages, identities=numbers, group=group, **options)


def passage_centric(
    queries: Array,
    passages: Array,
    denominator: str,
    *,
    numbers: Array | None = None,
    group: int = 0,
    **options: Any,
) -> Ranked:
    """L_P of each positive passage, from the same vectors.

    With numbers, other queries that the anchor answers are not negatives either.
    """
    if passages.shape[1] < 2 and denominator in ("hard_from_all_only", "own_hard_only"):
        raise UserError(
            f"the passage-centric loss of {denominator} is about hard negatives, and there are "
            "none in the batch; set n_passages to 2 or more, or alpha to 0"
        )

    def one(queries: Array, passages: Array, numbers: Array | None) -> Ranked:
        size, per, width = passages.shape
        own = jnp.arange(size)
        if numbers is None:
            numbers = jnp.arange(size * per).reshape(size, per)
        hard = passages[:, 1:].reshape(-1, width)
        # The query is the positive; the variant decides which other candidates are seen.
        columns = [queries, hard]
        if others := denominator == "paper_inbatch_and_hard":
            columns.insert(1, passages[:, 0])

        def unseen(about: tuple[Array, Array]) -> Array:
            place, number = (x[:, None] for x in about)
            copies = number == numbers[:, 0]
            hidden = copies if denominator == "official_code" else place != own
            parts = [hidden] + [copies] * others + [number == numbers[:, 1:].reshape(-1)]
            return jnp.concatenate(parts, axis=1)

        return contrastive.softmax_loss(
            passages[:, 0],
            jnp.concatenate([part.astype(queries.dtype) for part in columns]),
            own,
            excluded=unseen,
            about=(own, numbers[:, 0]),
            **options,
        )

    group = 1 if denominator == "own_hard_only" else group
    return contrastive.in_groups(one, group, queries, passages, numbers)
