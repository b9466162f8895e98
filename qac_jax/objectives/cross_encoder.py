"""Cross-encoders: a query and a passage in one sequence, and a score of their relevance.

Two losses. `Pointwise` is RocketQA's teacher: every pair is classified as relevant or not (two-way
softmax; Qu et al., 2021). `Localized` is Reranker's contrastive loss: the positive against the
negatives of its own query. Both work with one logit (a log-odd) and with two.

The adversarial step perturbs the word embeddings along the normalised gradient of the loss and
trains on the loss there; the table itself is not changed by it. The norm is over the whole batch,
where RocketQA takes it on each GPU.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.models.encoders import CrossEncoder, backbone_of, log_odds
from qac_jax.models.layers import fold
from qac_jax.objectives.chunked import chunked_encode
from qac_jax.objectives.objective import (
    Aux,
    Batch,
    Context,
    Objective,
    Variables,
    check_vocabulary,
    example_keys,
    global_weights,
)


_EPSILON = 1e-8  # under the root of the norm


@dataclasses.dataclass(frozen=True)
class _Scorer(Objective):
    """The common part of both losses: scores of pairs, the adversarial step, initial parameters.

    Their `prepare` returns texts as "ids", "types" and "lengths", and one key per text.
    """

    fills: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    model: CrossEncoder
    adversarial_step: float = option(0.0, at_least=0)  # RocketQA: 0.01
    chunk: int = dataclasses.field(default=0, kw_only=True)

    def verb(self, kind: str) -> str:
        return "finetune"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.labels not in (1, 2):
            raise UserError(f"labels={self.model.labels} of the cross-encoder; expected 1 or 2")

    @property
    def splittable(self) -> bool:
        """The step's direction depends on the whole batch."""
        return not self.adversarial_step

    @property
    def scorer(self) -> CrossEncoder:
        """The model with the pooler that its output reads."""
        config = self.model.config.with_parts("pooler")
        return self.model.clone(config=config)

    def bind(self, context: Context) -> Self:
        """The model records whether its passages come with a first ranking's score."""
        if context.tokenizer is not None:
            check_vocabulary(context.tokenizer.vocab_size, self.model.config.vocab_size)
        bound = super().bind(context)
        model = bound.model.clone(reads_scores=bool(context.reading.get("scores")))
        return dataclasses.replace(bound, model=model)

    def export(self, variables: Variables) -> tuple[Any, Any]:
        return self.scorer, variables["params"]

    def start_from(self, module: Any, params: Any) -> tuple[Self, Any]:
        """From a cross-encoder, or from any model's encoder with a new output layer."""
        if isinstance(module, CrossEncoder):
            config, start = module.config, dict(params)
            if module.labels != self.model.labels:
                start.pop("classifier")
        elif (inside := backbone_of(module, params)) is not None:
            config, start = inside[0], {"backbone": inside[1]}
        else:
            raise UserError(
                f"a cross-encoder cannot start from a {type(module).__name__}; give an encoder "
                "such as a BERT, or what was trained from one"
            )
        model = self.model.clone(config=config, runtime=module.runtime)
        return dataclasses.replace(self, model=model), start

    def init(self, key: jax.Array) -> Variables:
        ids, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32)
        return self.scorer.init(key, ids, lengths)

    @abc.abstractmethod
    def examples_loss(self, odds: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The loss of each example [B] from the log-odds of its texts, and its accuracy."""

    def loss(
        self, variables: Variables, batch: Batch, key: jax.Array, train: bool
    ) -> tuple[jax.Array, Aux]:
        params = variables["params"]

        def total(change: jax.Array | None, keys: jax.Array | None) -> tuple[jax.Array, jax.Array]:
            perturbed = params if change is None else self._perturbed(params, change)
            losses, right = self.examples_loss(self.odds(perturbed, batch, keys), batch)
            weights = batch["weights"].astype(losses.dtype)
            return jnp.sum(weights * losses), jnp.sum(weights * right)

        change = None
        if train and self.adversarial_step:
            zero = jnp.zeros_like(self._words(params))
            # The direction is computed without dropout, as in the reference.
            gradient = jax.grad(lambda change: total(change, None)[0])(zero)
            change = jax.lax.stop_gradient(adversarial(gradient, self.adversarial_step))
        loss, accuracy = total(change, batch["keys"] if train else None)
        return loss, {"accuracy": accuracy}

    def _words(self, params: Any) -> jax.Array:
        return self.model.config.words_of(params["backbone"])

    def _perturbed(self, params: Any, change: jax.Array) -> Any:
        """The parameters with `change` added to their word embeddings."""
        table = self._words(params) + change
        return {**params, "backbone": self.model.config.with_words(params["backbone"], table)}

    def odds(self, params: Any, batch: Batch, keys: jax.Array | None) -> jax.Array:
        """Log-odds of texts [..., L], a chunk of examples at a time: [...]."""
        module = self.scorer

        def score(part: Batch) -> jax.Array:
            ids, text_keys = part["ids"], part.get("keys")
            flat = ids.reshape(-1, ids.shape[-1])
            logits = module.apply(
                {"params": params},
                flat,
                part["lengths"].reshape(-1),
                part["types"].reshape(flat.shape),
                None if text_keys is None else text_keys.reshape(-1),
            )
            return log_odds(logits).reshape(ids.shape[:-1])

        parts = {name: batch[name] for name in ("ids", "lengths", "types")}
        if keys is not None:
            parts["keys"] = keys
        return chunked_encode(score, parts, self.chunk, self.runtime.kept)


@dataclasses.dataclass(frozen=True)
class Pointwise(_Scorer):
    """Binary cross-entropy of the feature `pair` against `label` (0 or 1)."""

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        size = batch["pair"].shape[0]
        return {
            "ids": batch["pair"],
            "types": batch["pair_types"],
            "lengths": batch["pair_length"],
            "label": batch["label"],
            "weights": global_weights(jnp.ones(size, bool), self.examples),
            "keys": example_keys(key, size),
        }

    def examples_loss(self, odds: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        label = batch["label"]
        # -log P(label): with two logits that of the two-way softmax, by their difference.
        losses = jax.nn.softplus(jnp.where(label > 0, -odds, odds))
        return losses, (odds > 0) == (label > 0)


@dataclasses.dataclass(frozen=True)
class Localized(_Scorer):
    """The first text in `pairs`, the positive, against the other texts of its query."""

    def prepare(self, batch: Batch, key: jax.Array) -> Batch:
        size, texts = batch["pairs"].shape[:2]
        keys = example_keys(key, size)
        return {
            "ids": batch["pairs"],
            "types": batch["pairs_types"],
            "lengths": batch["pairs_length"],
            "weights": global_weights(jnp.ones(size, bool), self.examples),
            "keys": jax.vmap(fold, (None, 0), 1)(keys, jnp.arange(texts)),
        }

    def examples_loss(self, odds: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        losses = jax.nn.logsumexp(odds, axis=-1) - odds[:, 0]
        return losses, odds[:, 0] >= jnp.max(odds, axis=-1)


def adversarial(gradient: jax.Array, step: float) -> jax.Array:
    """The step along a gradient, normalised over the whole table (RocketQA's released code)."""
    return step * gradient * jax.lax.rsqrt(jnp.sum(jnp.square(gradient)) + _EPSILON)
