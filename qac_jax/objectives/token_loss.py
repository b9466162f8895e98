"""Cross-entropy of predicted tokens, for masked language models and decoders."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.models.packing import platform


class TokenLoss(NamedTuple):
    """Sums over tokens, weighted."""

    loss: jax.Array  # the training loss: likelihood, smoothing and z-loss
    likelihood: jax.Array  # negative log-likelihood alone
    accuracy: jax.Array


def token_loss(
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
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


def normaliser(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest logit, without a gradient, and log Z, over the last axis."""
    if platform() == "gpu":
        return _in_one_pass(logits)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    return largest, jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1)) + largest


@jax.custom_vjp
def _in_one_pass(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum is scaled anew where a larger logit is met, so logits are read once, not twice: of
    30,000 words for each masked token they are the largest array of a step."""

    def join(left: Any, right: Any) -> tuple[jax.Array, jax.Array]:
        largest = jnp.maximum(left[0], right[0])
        sums = (total * jnp.exp(own - largest) for own, total in (left, right))
        return largest, sum(sums)

    one, lowest = jnp.ones_like(logits), jnp.finfo(logits.dtype).min
    start = (jnp.array(lowest, logits.dtype), jnp.zeros((), logits.dtype))
    largest, total = jax.lax.reduce((logits, one), start, join, (logits.ndim - 1,))
    return largest, jnp.log(total) + largest


def _one_pass_forward(logits: jax.Array) -> Any:
    largest, log_z = _in_one_pass(logits)
    return (largest, log_z), (logits, log_z)


def _one_pass_backward(kept: Any, gradients: Any) -> tuple[jax.Array]:
    logits, log_z = kept
    return (gradients[1][..., None] * jnp.exp(logits - log_z[..., None]),)


_in_one_pass.defvjp(_one_pass_forward, _one_pass_backward)


def check_vocabulary(pieces: int, rows: int) -> None:
    """Refuses a model whose embedding is too small for its tokenizer."""
    if pieces > rows:
        raise UserError(
            f"vocab_size={rows} of the model is too small for a tokenizer of {pieces} pieces; "
            f"set it to {pieces} or more, or use the tokenizer that the model was made for"
        )
