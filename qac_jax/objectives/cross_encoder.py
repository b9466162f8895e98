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
from qac_jax.models.layers import Array, fold
from qac_jax.objectives import objective
from qac_jax.objectives.chunked import chunked_encode
from qac_jax.objectives.objective import Batch, Context, Loss, Objective, Variables, example_keys


_EPSILON = 1e-8  # under the root of the norm


@dataclasses.dataclass(frozen=True)
class _Scorer(Objective):
    """The common part of both losses: scores of pairs, the adversarial step, initial parameters."""

    fills: ClassVar[bool] = True

    model: CrossEncoder
    adversarial_step: float = option(0.0, at_least=0)  # RocketQA: 0.01
    chunk: int = dataclasses.field(default=0, kw_only=True)

    def verb(self, kind: str) -> str:
        return "finetune"

    @property
    def splittable(self) -> bool:
        """The step's direction depends on the whole batch."""
        return not self.adversarial_step

    @property
    def scorer(self) -> CrossEncoder:
        """The model with the pooler that its output reads."""
        return self.model.clone(config=self.model.config.with_parts("pooler"))

    def bind(self, context: Context) -> Self:
        """The model records whether its passages come with a first ranking's score."""
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

    def init(self, key: Array) -> Variables:
        return self.scorer.init(key, *self.scorer.example_inputs())

    def prepare(self, batch: Batch, key: Array) -> Batch:
        """The texts under the names that both losses have for them, and a key an example."""
        name = "pairs" if "pairs" in batch else "pair"
        size = len(batch[name])
        return {
            "ids": batch[name],
            "types": batch[f"{name}_types"],
            "lengths": batch[f"{name}_length"],
            "weights": objective.global_weights(jnp.ones(size, bool), self.examples),
            "keys": example_keys(key, size),
        }

    @abc.abstractmethod
    def examples_loss(self, odds: Array, batch: Batch) -> tuple[Array, Array]:
        """The loss of each example [B] from the log-odds of its texts, and its accuracy."""

    def loss(self, variables: Variables, batch: Batch, key: Array, train: bool) -> Loss:
        params, config = variables["params"], self.model.config
        words = config.words_of(params["backbone"])

        def total(change: Array | None, keys: Array | None) -> tuple[Array, Array]:
            perturbed = params
            if change is not None:
                inside = config.with_words(params["backbone"], words + change)
                perturbed = {**params, "backbone": inside}
            losses, right = self.examples_loss(self.odds(perturbed, batch, keys), batch)
            weights = batch["weights"].astype(losses.dtype)
            return jnp.sum(weights * losses), jnp.sum(weights * right)

        change = None
        if train and self.adversarial_step:
            # The direction is computed without dropout, as in the reference.
            gradient = jax.grad(lambda change: total(change, None)[0])(jnp.zeros_like(words))
            change = jax.lax.stop_gradient(adversarial(gradient, self.adversarial_step))
        loss, accuracy = total(change, batch["keys"] if train else None)
        return loss, {"accuracy": accuracy}

    def odds(self, params: Any, batch: Batch, keys: Array | None) -> Array:
        """Log-odds of texts [..., L], a chunk of examples at a time: [...]."""
        module = self.scorer

        def score(part: Batch) -> Array:
            shape, keys = part["ids"].shape, part.get("keys")
            ids, types = (part[name].reshape(-1, shape[-1]) for name in ("ids", "types"))
            keys = None if keys is None else keys.reshape(-1)
            logits = module.apply({"params": params}, ids, part["lengths"].reshape(-1), types, keys)
            return log_odds(logits).reshape(shape[:-1])

        parts = {name: batch[name] for name in ("ids", "lengths", "types")}
        if keys is not None:
            parts["keys"] = keys
        return chunked_encode(score, parts, self.chunk, self.runtime.kept)


@dataclasses.dataclass(frozen=True)
class Pointwise(_Scorer):
    """Binary cross-entropy of the feature `pair` against `label` (0 or 1)."""

    def prepare(self, batch: Batch, key: Array) -> Batch:
        return {**super().prepare(batch, key), "label": batch["label"]}

    def examples_loss(self, odds: Array, batch: Batch) -> tuple[Array, Array]:
        label = batch["label"]
        # -log P(label): with two logits that of the two-way softmax, by their difference.
        losses = jax.nn.softplus(jnp.where(label > 0, -odds, odds))
        return losses, (odds > 0) == (label > 0)


@dataclasses.dataclass(frozen=True)
class Localized(_Scorer):
    """The first text in `pairs`, the positive, against the other texts of its query."""

    def prepare(self, batch: Batch, key: Array) -> Batch:
        ready, texts = super().prepare(batch, key), jnp.arange(batch["pairs"].shape[1])
        return {**ready, "keys": jax.vmap(fold, (None, 0), 1)(ready["keys"], texts)}

    def examples_loss(self, odds: Array, batch: Batch) -> tuple[Array, Array]:
        losses = jax.nn.logsumexp(odds, axis=-1) - odds[:, 0]
        return losses, odds[:, 0] >= jnp.max(odds, axis=-1)


def adversarial(gradient: Array, step: float) -> Array:
    """The step along a gradient, normalised over the whole table (RocketQA's released code)."""
    return step * gradient * jax.lax.rsqrt(jnp.sum(jnp.square(gradient)) + _EPSILON)
