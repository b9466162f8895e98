"""Sequence to sequence: a T5 or a pointer-generator reads `inputs` and generates `targets`.

Teacher forcing: at each position the decoder sees the true targets before it. The loss is the mean
over all target tokens of the whole batch, with label smoothing and T5X's z-loss if set.
"""

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import backbone_of
from qac_jax.models.layers import Array
from qac_jax.models.pointer import PointerGenerator, Writer
from qac_jax.models.t5 import shift_right
from qac_jax.objectives import objective
from qac_jax.objectives.mlm import token_loss
from qac_jax.objectives.objective import Batch, Context, Loss, Objective, Variables, example_keys


@dataclasses.dataclass(frozen=True)
class Seq2Seq(Objective):
    """Generate `targets` from `inputs`; both end with the model's end-of-text token."""

    fills: ClassVar[bool] = True

    model: Writer
    smoothing: float = option(0.0, at_least=0, below=1)
    z_loss: float = option(0.0, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.model, PointerGenerator) and (self.smoothing or self.z_loss):
            raise UserError(
                f"smoothing={self.smoothing} and z_loss={self.z_loss} are for a T5: a "
                "pointer-generator's outputs are probabilities; set both to 0"
            )

    def bind(self, context: Context) -> Self:
        bound, config, tokenizer = super().bind(context), self.model.config, context.tokenizer
        if tokenizer is None:
            return bound
        end = tokenizer.special("eos" if tokenizer.has("eos") else "sep")
        if config.eos_id != end:
            raise UserError(
                f"eos_id={config.eos_id} of the model is not the tokenizer's end of text, "
                f"{end} ({tokenizer.token(end)}); set eos_id={end} of {type(config).__name__}"
            )
        return bound

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """A pointer-generator also starts from the encoder that it reads with."""
        if not isinstance(self.model, PointerGenerator) or type(module) is type(self.model):
            return super().start_from(module, params)
        config, inner = backbone_of(module, params) or (None, {})
        if not self.model.config.reads_with(config):
            raise UserError(
                f"the pointer-generator reads with {self.model.config.encoder}, and the model to "
                f"start from has {config}; give another init, or a configuration of its shape"
            )
        return self, {"encoder": inner}

    def init(self, key: Array) -> Variables:
        return self.model.init(key, *self.model.example_inputs())

    def prepare(self, batch: Batch, key: Array) -> Batch:
        targets, length = self._without_start(batch["targets"], batch["targets_length"])
        mask = jnp.arange(targets.shape[1]) < length[:, None]
        return {
            "inputs": batch["inputs"],
            "inputs_length": batch["inputs_length"],
            "targets": targets,
            "weights": objective.global_weights(mask, self.examples),
            "keys": example_keys(key, targets.shape[0]),
        }

    def _without_start(self, targets: Array, length: Array) -> tuple[Array, Array]:
        """Targets without a start token (BERT's [CLS]), which the decoder's input already has."""
        starts = (targets[:, 0] == self.model.config.start_id) & (length > 0)
        rest = jnp.roll(targets, -1, axis=1).at[:, -1].set(self.model.config.pad_id)
        return jnp.where(starts[:, None], rest, targets), length - starts

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        read, targets = (batch["inputs"], batch["inputs_length"]), batch["targets"]
        before, keys = shift_right(targets, self.model.config.start_id), batch["keys"]
        keys = keys if train else None
        if isinstance(self.model, PointerGenerator):
            bound = self.model.bind(variables)
            likelihood = bound.likelihood(before, targets, bound.encode(*read, keys), read[1], keys)
            loss = -(likelihood * batch["weights"]).sum()
            return loss, {"likelihood": loss}
        logits = self.model.apply(variables, *read, before, keys)
        softer: Any = {"smoothing": self.smoothing, "z_loss": self.z_loss} if train else {}
        result = token_loss(logits, targets, batch["weights"], **softer)
        return result.loss, {"likelihood": result.likelihood, "token_accuracy": result.accuracy}
