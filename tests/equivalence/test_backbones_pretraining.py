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
OBJECTIVES = ["mlm", "condenser", "cocondenser", "cotmae", "retromae"]


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


# Every pair compiles a training step; the backbones whose attention differs most run in the fast
# tests, with the shortest objective.
QUICK = (("mlm", "mpnet"), ("mlm", "modernbert"))
PAIRS = [
    pytest.param(name, of, marks=[] if (name, of) in QUICK else [pytest.mark.slow])
    for name in OBJECTIVES
    for of in CONFIGS
]


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_three_steps_lower_the_loss(name: str, backbone: str) -> None:
    config = CONFIGS[backbone]
    if (name, backbone) == ("retromae", "modernbert"):
        with pytest.raises(UserError, match="ModernBERT has no position embeddings"):
            losses(name, config)
        return
    if (name, backbone) == ("retromae", "electra"):
        config = ElectraConfig(**toy_configs.SIZES, max_positions=PASSAGE, embedding_size=16)
    found = losses(name, config)
    assert np.isfinite(found).all() and found[-1] < 0.98 * found[0], found


def test_retromae_refuses_embeddings_that_are_narrower_than_the_layers() -> None:
    with pytest.raises(UserError, match="position embeddings of this ELECTRA are narrower"):
        losses("retromae", CONFIGS["electra"])
