"""Masked language modelling: an encoder predicts masked words (BERT, Devlin et al., 2019).

Words are masked on the device, differently in every step (`qac_jax.objectives.masking`); logits are
computed at the masked positions only. The loss is the mean over all masked tokens of the whole
batch, where the papers' code takes the mean of each device's mean.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.backbone import Backbone
from qac_jax.models.encoders import DualEncoder
from qac_jax.objectives.masking import Masking, Vocabulary
from qac_jax.objectives.objective import (
    Aux,
    Batch,
    Objective,
    Variables,
    example_keys,
    global_weights,
)
from qac_jax.objectives.token_loss import check_vocabulary, token_loss


@dataclasses.dataclass(frozen=True)
class Mlm(Objective):
    """Predict the masked tokens of the feature `tokens`."""

    model: Backbone
    masking: Masking = Masking()
    vocabulary: Vocabulary | None = None  # bound by `with_tokenizer` when a run starts

    @property
    def module(self) -> Backbone:
        """The model with its MLM head."""
        return self.model.clone(config=self.model.config.with_parts("mlm_head"))

    @property
    def packs(self) -> bool:
        return True

    @property
    def fills(self) -> bool:
        return True

    def with_tokenizer(self, tokenizer: Any) -> Self:
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        check_vocabulary(vocabulary.size, self.model.config.vocab_size)
        return dataclasses.replace(self, vocabulary=vocabulary)

    @property
    def known_vocabulary(self) -> Vocabulary:
        """The vocabulary, once it is bound."""
        if self.vocabulary is None:
            raise UserError(
                f"{type(self).__name__} has no vocabulary yet; call with_tokenizer(tokenizer)"
            )
        return self.vocabulary

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """From any encoder, or from the encoder of a tied dual encoder, whatever its pooling."""
        if isinstance(module, DualEncoder) and module.config.tied:
            config, params = module.config.backbone, params["encoder"]["backbone"]
            module = config.build(module.runtime)
        if isinstance(module, Backbone):
            return dataclasses.replace(self, model=module), params
        return super().start_from(module, params)

    def init(self, key: jax.Array) -> Variables:
        return self.module.init(key, jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32))

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        ids, lengths = batch["tokens"], batch["tokens_length"]
        mask_keys, dropout_keys = (example_keys(k, len(ids)) for k in jax.random.split(key))
        masked = self.masking(ids, lengths, mask_keys, self.known_vocabulary)
        return {
            "tokens": masked.ids,
            "tokens_length": lengths,
            "positions": masked.positions,
            "labels": masked.labels,
            "weights": global_weights(masked.weights > 0, self.examples),
            "keys": dropout_keys,
        }

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        module, keys = self.module, batch["keys"] if train else None
        output = module.apply(variables, batch["tokens"], batch["tokens_length"], keys=keys)
        logits = module.apply(
            variables, output.last, batch["positions"], padded=True, method="mlm_logits"
        )
        result = token_loss(logits, batch["labels"], batch["weights"])
        return result.loss, {"masked_accuracy": result.accuracy}

    def encoder(self, variables: Variables) -> Variables:
        params = variables["params"]
        return {"params": {name: params[name] for name in params if name != "mlm_head"}}
