"""Every encoder under every pre-training objective: three steps on a batch lower its loss."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
import toy_configs
from toy_pretraining import PASSAGE, VOCABULARY, batch_for, objectives

from qac_jax.errors import UserError
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import ElectraConfig
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm


CONFIGS = toy_configs.masking(PASSAGE)


def objective_of(name: str, config: BackboneConfig) -> Any:
    known = objectives(config=config)
    model = known["condenser"].model
    return Mlm(model, Masking(0.3), VOCABULARY) if name == "mlm" else known[name]


def losses(name: str, config: BackboneConfig, steps: int = 3) -> list[float]:
    """The loss of one batch, masked in one way, before each step and after the last."""
    objective = objective_of(name, config)
    variables = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    given = batch_for("condenser" if name == "mlm" else name)
    batch = jax.jit(objective.prepare)(given, jax.random.key(1))
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(variables: Any, state: Any) -> tuple[Any, Any, Any]:
        def loss(variables: Any) -> Any:
            return objective.loss(variables, batch, jax.random.key(2), False)[0]

        value, gradient = jax.value_and_grad(loss)(variables)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(variables, updates), state, value

    state, found = optimizer.init(variables), []
    for _ in range(steps + 1):
        variables, state, value = step(variables, state)
        found.append(float(value))
    return found


# Every encoder with MLM, the shortest objective, and every other objective with one of them. The
# encoders whose attention differs most run in the fast tests.
QUICK = ("mpnet", "modernbert")
PAIRS = [
    *(pytest.param("mlm", of, marks=[pytest.mark.slow] * (of not in QUICK)) for of in CONFIGS),
    *(
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in (("condenser", "modernbert"), ("cocondenser", "mpnet"), ("cotmae", "electra"))
    ),
    pytest.param("retromae", "wide", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_three_steps_lower_the_loss(name: str, backbone: str) -> None:
    wide = ElectraConfig(**toy_configs.SIZES, max_positions=PASSAGE, embedding_size=16)
    found = losses(name, wide if backbone == "wide" else CONFIGS[backbone])
    assert np.isfinite(found).all() and found[-1] < 0.98 * found[0], found


def test_retromae_refuses_embeddings_that_it_cannot_add() -> None:
    with pytest.raises(UserError, match="position embeddings of this ELECTRA are narrower"):
        losses("retromae", CONFIGS["electra"])
    with pytest.raises(UserError, match="ModernBERT has no position embeddings"):
        losses("retromae", CONFIGS["modernbert"])
