"""Condenser: pre-training that makes the [CLS] vector hold the text (Gao & Callan, 2021).

A few layers on top read the last layer's [CLS] vector and, of all other tokens, only the hidden
states of an early layer. They predict the masked words with the encoder's own MLM head,
which is possible only if the vector aggregates what the upper layers compute (the paper, §3.3).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qac_jax.fields import option
from qac_jax.hub import huggingface
from qac_jax.models.backbone import BackboneOutput
from qac_jax.models.heads import BidirectionalHead
from qac_jax.models.layers import Array, fold
from qac_jax.models.transformer import OUTPUT_SITE
from qac_jax.objectives.masking import MaskedText
from qac_jax.objectives.mlm import Mlm, TokenLoss, mlm_loss
from qac_jax.objectives.objective import Batch, Loss, Variables


HEAD = "head"
# Dropout in the head has its own keys, because its layers number their sites as the encoder's do.
_HEAD_SITE = 2 * OUTPUT_SITE


class Predictions(NamedTuple):
    """The outputs of the model for texts: vectors [B, D], losses summed for each example [B]."""

    vector: Array
    head: TokenLoss
    late: TokenLoss


@dataclasses.dataclass(frozen=True)
class Condenser(Mlm):
    """Predict the masked tokens of the feature `tokens` through the head, and without it.

    skip_from: the hidden state that the head reads (None: that of the middle layer, 6 of 12).
    late_mlm: whether the encoder's own predictions are trained too. start_head: "local" loads the
    head stored beside the weights of `--init`, "random" initialises a new one.
    """

    head_layers: int = option(2, at_least=1)
    skip_from: int | None = None
    late_mlm: bool = True
    start_head: str = option("local", choices=("local", "random"))

    @property
    def heads(self) -> Mapping[str, BidirectionalHead]:
        return {HEAD: BidirectionalHead(self.model.config, self.model.runtime, self.head_layers)}

    @property
    def whole(self) -> bool:
        """Whether the last layer is needed at every token, or at [CLS] alone."""
        return self.late_mlm or self.skip in (-1, self.model.config.num_layers)

    @property
    def skip(self) -> int:
        return self.model.config.num_layers // 2 if self.skip_from is None else self.skip_from

    def stored_heads(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """The parameters of the head stored in the initial model's folder, if there is one."""
        if self.start_head == "random":
            return {}
        heads = huggingface.load_heads(folder, self.model.config, self.model.runtime)
        return {HEAD: heads["c_head"][1]["params"]} if "c_head" in heads else {}

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        text = self.predictions(variables, batch["text"], batch["keys"] if train else None)
        return self.mlm_terms([text])

    def predictions(
        self, variables: Variables, text: MaskedText, keys: Array | None
    ) -> Predictions:
        """The vectors of masked texts, and the MLM losses of head and encoder."""
        module, skip = self.module, self.skip
        out = module.apply(
            variables,
            text.ids,
            text.lengths,
            keys=keys,
            hidden_states=(skip,),
            rows=None if self.whole else 1,
        )
        inputs = out.cls, out.hidden_states[skip], text.lengths, fold(keys, _HEAD_SITE)
        hidden = self.apply_head(HEAD, variables, *inputs)
        of_head = mlm_loss(module, variables, hidden, text)
        late = jax.tree.map(jnp.zeros_like, of_head)
        if self.late_mlm:
            late = mlm_loss(module, variables, out.last, text)
        return Predictions(self.vector(out, text.lengths), of_head, late)

    def vector(self, out: BackboneOutput, lengths: Array) -> Array:
        return out.cls

    def mlm_terms(self, texts: list[Predictions]) -> Loss:
        """The sum of both MLM losses over all texts, and each of them as a metric."""

        def total(name: str, field: str) -> Array:
            return sum((jnp.sum(getattr(getattr(t, name), field)) for t in texts), jnp.zeros(()))

        aux = {
            "head_mlm_loss": total("head", "loss"),
            "head_masked_accuracy": total("head", "accuracy"),
        }
        loss = aux["head_mlm_loss"]
        if self.late_mlm:
            late = total("late", "loss")
            aux |= {"late_mlm_loss": late, "masked_accuracy": total("late", "accuracy")}
            loss = loss + late
        return loss, aux
