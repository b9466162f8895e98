"""Masked language modelling: an encoder predicts masked words (BERT, Devlin et al., 2019).

Words are masked on the device, differently in every step (`qac_jax.objectives.masking`); logits are
computed at the masked positions only. The loss is the mean over all masked tokens of the whole
batch, where the papers' code takes the mean of each device's mean.

The parameters of the objectives with heads that build on it are those of the encoder (with the MLM
head) and one subtree for each head: {"embeddings", "layers", "mlm_head", "head": {"layers"}}. So
they can start from a plain encoder, or from the encoder of another objective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.errors import UserError
from qac_jax.models.backbone import Backbone
from qac_jax.models.encoders import DualEncoder
from qac_jax.objectives.chunked import first_rows
from qac_jax.objectives.masking import Masking, Vocabulary
from qac_jax.objectives.objective import (
    Aux,
    Batch,
    Context,
    Objective,
    Variables,
    example_keys,
    global_weights,
)
from qac_jax.objectives.token_loss import TokenLoss, check_vocabulary, token_loss


@dataclasses.dataclass(frozen=True)
class Mlm(Objective):
    """Predict the masked tokens of the feature `tokens`."""

    fills: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    model: Backbone
    masking: Masking = Masking()
    vocabulary: Any = None  # a Vocabulary, bound when a run starts

    @property
    def module(self) -> Backbone:
        """The model with its MLM head."""
        return self.model.clone(config=self.model.config.with_parts("mlm_head"))

    def bind(self, context: Context) -> Self:
        size = self.model.config.vocab_size
        if context.tokenizer is None:
            vocabulary = Vocabulary(np.zeros(size, bool))
        else:
            vocabulary = Vocabulary.from_tokenizer(context.tokenizer)
            check_vocabulary(vocabulary.size, size)
        return dataclasses.replace(super().bind(context), vocabulary=vocabulary)

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
        masked = self.masking(ids, lengths, mask_keys, self.vocabulary)
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

    def export(self, variables: Variables) -> tuple[Any, Any]:
        params = variables["params"]
        return self.model, {name: params[name] for name in params if name != "mlm_head"}


class MaskedText(NamedTuple):
    """Texts with masked words and the labels to predict; examples first."""

    ids: jax.Array  # [B, L]
    lengths: jax.Array  # [B]
    positions: jax.Array  # [B, M]
    labels: jax.Array  # [B, M]
    weights: jax.Array  # [B, M]; 0 where a position is padding


def masked(
    masking: Masking, vocabulary: Vocabulary, ids: jax.Array, lengths: jax.Array, keys: jax.Array
) -> MaskedText:
    """Masks texts; the weights are 1 or 0 until `shared` normalises them."""
    batch = masking(ids, lengths, keys, vocabulary)
    return MaskedText(batch.ids, lengths, batch.positions, batch.labels, batch.weights)


def shared(texts: Sequence[MaskedText], group: int = 0, examples: int = 0) -> list[MaskedText]:
    """The same texts with weights that sum to one over all of them: one mean over all tokens.

    group: a mean over each group of this many sequences, then the mean of these, as in the
    gradient cache of Condenser's released code (one mean per chunk). Sequences are ordered by
    example: the first example's texts, then the second's. Rows behind the first `examples` (0:
    none) have weights of zero.
    """
    wanted = [text.weights > 0 for text in texts]
    counts = jnp.stack([jnp.sum(each, axis=1, dtype=float) for each in wanted], axis=1)
    rows, counts = counts.shape[0], first_rows(counts, examples)
    sequences = counts.size
    size = group if 0 < group < sequences else sequences
    if sequences % size:
        raise UserError(
            f"mlm_group={group} does not divide the {sequences} texts of a batch; choose a "
            "divisor, or 0 for one mean over the whole batch"
        )
    total = jnp.sum(counts.reshape(-1, size), axis=1)
    share = (size / sequences) / jnp.maximum(total, 1.0)
    each = jnp.repeat(share, size).reshape(counts.shape)
    if examples:
        each = jnp.pad(each, ((0, rows - examples), (0, 0)))
    return [
        text._replace(weights=mask.astype(float) * each[:, place, None])
        for place, (text, mask) in enumerate(zip(texts, wanted, strict=True))
    ]


def mlm_loss(
    module: Backbone, variables: Variables, hidden: jax.Array, text: MaskedText
) -> TokenLoss:
    """The MLM loss at the masked positions: sums over the tokens of each example, [B]."""
    logits = module.apply(variables, hidden, text.positions, padded=True, method="mlm_logits")
    return jax.vmap(token_loss)(logits, text.labels, text.weights)


def new_head(head: nn.Module, config: Any, key: jax.Array) -> Any:
    """New parameters of a head that reads a vector and hidden states."""
    vector = jnp.zeros((1, config.hidden_size))
    return head.init(key, vector, jnp.zeros((1, 2, config.hidden_size)))["params"]


def part(variables: Variables, names: str | Collection[str], *, without: bool = False) -> Variables:
    """The variables of one head; with `without`, those of the encoder without these heads."""
    params = variables["params"]
    if isinstance(names, str):
        return {"params": params[names]}
    return {"params": {n: p for n, p in params.items() if (n in names) != without}}
