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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.errors import UserError
from qac_jax.models.backbone import Backbone, example_texts
from qac_jax.models.encoders import DualEncoder
from qac_jax.models.layers import Array
from qac_jax.models.packing import platform
from qac_jax.objectives.chunked import first_rows
from qac_jax.objectives.masking import MaskedText, Masking, Vocabulary
from qac_jax.objectives.objective import Batch, Context, Loss, Objective, Variables, example_keys


@dataclasses.dataclass(frozen=True)
class Mlm(Objective):
    """Predict the masked tokens of the feature `tokens`."""

    fills: ClassVar[bool] = True

    model: Backbone
    masking: Masking = Masking()
    vocabulary: Any = None  # a Vocabulary, bound when a run starts

    @property
    def module(self) -> Backbone:
        """The model with its MLM head."""
        return self.model.clone(config=self.model.config.with_parts("mlm_head"))

    def bind(self, context: Context) -> Self:
        vocabulary = Vocabulary(np.zeros(self.model.config.vocab_size, bool))
        if context.tokenizer is not None:
            vocabulary = Vocabulary.from_tokenizer(context.tokenizer)
        return dataclasses.replace(super().bind(context), vocabulary=vocabulary)

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """From any encoder, or from the encoder of a tied dual encoder, whatever its pooling."""
        if isinstance(module, DualEncoder) and module.config.tied:
            config, params = module.config.backbone, params["encoder"]["backbone"]
            module = config.build(module.runtime)
        if isinstance(module, Backbone):
            return dataclasses.replace(self, model=module), params
        return super().start_from(module, params)

    @property
    def heads(self) -> Mapping[str, Any]:
        """Modules that are trained beside the encoder, by the names of their parameters."""
        return {}

    def init(self, key: Array) -> Variables:
        heads = self.heads
        first, *keys = jax.random.split(key, 1 + len(heads)) if heads else [key]
        params = self.module.init(first, *example_texts())["params"]
        for (name, head), own in zip(heads.items(), keys, strict=True):
            params = {**params, name: head.init(own, *head.example_inputs())["params"]}
        return {"params": params}

    def apply_head(self, name: str, variables: Variables, *inputs: Any) -> Any:
        return self.heads[name].apply({"params": variables["params"][name]}, *inputs)

    def export(self, variables: Variables) -> tuple[Any, Any]:
        left_out = {"mlm_head", *self.heads}
        return self.model, {n: p for n, p in variables["params"].items() if n not in left_out}

    def masked(self, batch: Batch, name: str, masking: Masking, keys: Array) -> MaskedText:
        return masking(batch[name], batch[f"{name}_length"], keys, self.vocabulary)

    def prepare(self, batch: Batch, key: Array) -> Batch:
        count = len(batch["tokens"])
        mask_keys, dropout_keys = (example_keys(k, count) for k in jax.random.split(key))
        text = self.masked(batch, "tokens", self.masking, mask_keys)
        return {"text": normalised([text], examples=self.examples)[0], "keys": dropout_keys}

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        module, text, keys = self.module, batch["text"], batch["keys"] if train else None
        out = module.apply(variables, text.ids, text.lengths, keys=keys)
        result = mlm_loss(module, variables, out.last, text)
        return jnp.sum(result.loss), {"masked_accuracy": jnp.sum(result.accuracy)}


def normalised(texts: Sequence[MaskedText], group: int = 0, examples: int = 0) -> list[MaskedText]:
    """Texts whose weights sum to one over all of them: one mean over all masked tokens.

    group: a mean over each group of this many sequences, then the mean of these, as in the
    gradient cache of Condenser's released code (one mean per chunk). Sequences are ordered by
    example: the first example's texts, then the second's. Rows behind the first `examples` (0:
    none) have weights of zero.
    """
    wanted = [text.weights > 0 for text in texts]
    counts = jnp.stack([jnp.sum(each, axis=1, dtype=float) for each in wanted], axis=1)
    rows, counts = len(counts), first_rows(counts, examples)
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


def mlm_loss(module: Backbone, variables: Variables, hidden: Array, text: MaskedText) -> TokenLoss:
    """The MLM loss at the masked positions: sums over the tokens of each example, [B]."""
    logits = module.apply(variables, hidden, text.positions, padded=True, method="mlm_logits")
    return jax.vmap(token_loss)(logits, text.labels, text.weights)


# Cross-entropy of predicted tokens, also of decoders.


class TokenLoss(NamedTuple):
    """Sums over tokens, weighted."""

    loss: Array  # the training loss: likelihood, smoothing and z-loss
    likelihood: Array  # negative log-likelihood alone
    accuracy: Array


def token_loss(
    logits: Array, labels: Array, weights: Array, *, smoothing: float = 0.0, z_loss: float = 0.0
) -> TokenLoss:
    """logits [..., V'], labels and weights [...].

    smoothing ε mixes the target with the uniform distribution, (1 - ε) nll + ε mean(nll of all
    tokens), as torch does; z_loss is the coefficient of log²Z, which keeps the normaliser near one
    (T5X). Padding columns of the vocabulary have the lowest number of the dtype.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    largest, log_z = normaliser(logits)
    # A comparison and a sum, not a gather: its gradient fuses with the softmax's, where a
    # gather's would be a scatter into an array as large as the logits.
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    right = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    nll = log_z - right
    loss = nll
    if smoothing:
        real = logits > jnp.finfo(logits.dtype).min
        mean = jnp.sum(jnp.where(real, logits, 0), axis=-1) / jnp.sum(real, axis=-1)
        loss = (1.0 - smoothing) * nll + smoothing * (log_z - mean)
    if z_loss:
        loss = loss + z_loss * jnp.square(log_z)
    correct = (jax.lax.stop_gradient(right) >= largest).astype(loss.dtype)
    return TokenLoss(jnp.sum(weights * loss), jnp.sum(weights * nll), jnp.sum(weights * correct))


def normaliser(logits: Array) -> tuple[Array, Array]:
    """The largest logit, without a gradient, and log Z, over the last axis."""
    if platform() == "gpu":
        return _in_one_pass(logits)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    return largest, jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)) + largest


@jax.custom_vjp
def _in_one_pass(logits: Array) -> tuple[Array, Array]:
    """The sum is scaled anew where a larger logit is met, so logits are read once, not twice: of
    30,000 words for each masked token they are the largest array of a step."""

    def join(left: Any, right: Any) -> tuple[Array, Array]:
        largest = jnp.maximum(left[0], right[0])
        sums = (total * jnp.exp(own - largest) for own, total in (left, right))
        return largest, sum(sums)

    one, lowest = jnp.ones_like(logits), jnp.finfo(logits.dtype).min
    start = (jnp.array(lowest, logits.dtype), jnp.zeros((), logits.dtype))
    largest, total = jax.lax.reduce((logits, one), start, join, (logits.ndim - 1,))
    return largest, jnp.log(total) + largest


def _one_pass_forward(logits: Array) -> Any:
    largest, log_z = _in_one_pass(logits)
    return (largest, log_z), (logits, log_z)


def _one_pass_backward(kept: Any, gradients: Any) -> tuple[Array]:
    logits, log_z = kept
    return (gradients[1][..., None] * jnp.exp(logits - log_z[..., None]),)


_in_one_pass.defvjp(_one_pass_forward, _one_pass_backward)
