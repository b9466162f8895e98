"""Listwise distillation: the loss in numpy, parts of a batch, what it learns."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qac_jax.errors import UserError
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.listwise import Listwise


G, Q, P, LENGTH = 2, 3, 4, 6
BERT = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=LENGTH,
)
OBJECTIVE = Listwise(
    DualEncoder(DualEncoderConfig(BERT, pooling="mean", normalize=True), Runtime()),
    temperature=0.1,
    teacher_temperature=0.2,
)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def variables() -> Any:
    return nn.unbox(jax.jit(OBJECTIVE.init)(KEY))


def batch_of() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {"scores": rng.normal(size=(G, Q, P)).astype(np.float32)}
    batch["scores"][1, :, 3] = -np.inf  # a passage that only fills the group
    for name, count in (("query", Q), ("passages", P)):
        batch[name] = rng.integers(5, 40, (G, count, LENGTH), dtype=np.int32)
        batch[f"{name}_length"] = rng.integers(3, LENGTH + 1, (G, count), dtype=np.int32)
    return batch


def test_the_loss_is_the_divergence_of_every_query(variables: Any) -> None:
    batch = batch_of()
    measure = jax.jit(lambda v, b: OBJECTIVE.loss(v, OBJECTIVE.prepare(b, KEY), KEY, train=False))
    loss, aux = measure(variables, batch)

    def vectors(name: str, side: str) -> np.ndarray:
        ids, lengths = batch[name], batch[f"{name}_length"]
        apply = jax.jit(functools.partial(OBJECTIVE.model.apply, side=side))
        found = [apply(variables, ids[g], lengths[g]) for g in range(G)]
        return np.array(found, np.float64)

    queries, passages = vectors("query", "query"), vectors("passages", "passage")
    divergences, agreed = [], []
    for group in range(G):
        kept = np.isfinite(batch["scores"][group, 0])
        for query in range(Q):
            own = queries[group, query] @ passages[group][kept].T
            teacher = batch["scores"][group, query][kept].astype(np.float64)
            p, q = softmax(teacher / 0.2), softmax(own / 0.1)
            divergences.append(np.sum(p * np.log(p / q)))
            agreed.append(own.argmax() == teacher.argmax())
    assert float(loss) == pytest.approx(np.mean(divergences), rel=1e-5)
    assert float(aux["agreement"]) == pytest.approx(np.mean(agreed))


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max())
    return x / x.sum()


def test_a_few_steps_learn_the_order_and_parts_of_a_batch_add_up(variables: Any) -> None:
    batch = OBJECTIVE.prepare(batch_of(), KEY)
    measure = jax.jit(
        jax.value_and_grad(lambda v, b: OBJECTIVE.loss(v, b, KEY, train=False), has_aux=True)
    )
    (whole, _), gradient = measure(variables, batch)
    parts = [measure(variables, jax.tree.map(lambda x, n=n: x[n : n + 1], batch)) for n in range(G)]
    assert float(whole) == pytest.approx(sum(float(loss) for (loss, _), _ in parts), rel=1e-5)
    summed = jax.tree.map(jnp.add, *(grad for _, grad in parts))
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(summed), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-5)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(variables)
    for _ in range(30):
        (loss, aux), gradient = measure(variables, batch)
        updates, state = optimizer.update(gradient, state)
        variables = optax.apply_updates(variables, updates)
    assert float(loss) < 0.2 * float(whole) and float(aux["agreement"]) > 0.8


def test_temperatures_are_positive() -> None:
    with pytest.raises(UserError, match="temperature = 0"):
        Listwise(OBJECTIVE.model, temperature=0.0)
    with pytest.raises(UserError, match="teacher_temperature = 0"):
        Listwise(OBJECTIVE.model, teacher_temperature=0.0)
