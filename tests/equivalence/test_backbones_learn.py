"""Every encoder and every objective once: three steps on one batch lower its loss."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
import toy_configs
from toy_objectives import batch_for, engine, objective, start

from qac_jax.errors import UserError
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import ElectraConfig


LENGTH = 12
SHALLOW, DEEP = toy_configs.every(LENGTH, num_layers=1), toy_configs.every(LENGTH)
DEEP["wide"] = ElectraConfig(**toy_configs.SIZES, max_positions=LENGTH, embedding_size=16)


def losses(name: str, config: BackboneConfig, steps: int = 3) -> list[float]:
    """The loss of one batch, prepared in one way, before each step and after the last."""
    made = objective(name, config=config)
    variables = nn.unbox(start(engine(made)).variables)
    batch = jax.jit(made.prepare)(batch_for(name), jax.random.key(1))
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, Any]:
        def loss(params: Any) -> Any:
            return made.loss({**variables, "params": params}, batch, jax.random.key(2), False)[0]

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params, found = variables["params"], []
    state = optimizer.init(params)
    for _ in range(steps + 1):
        params, state, value = step(params, state)
        found.append(float(value))
    return found


# The encoders whose attention differs most run in the fast tests.
COVER = [
    ("mlm", DEEP, "mpnet"),
    ("mlm", DEEP, "modernbert"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("condenser", DEEP, "distilbert"),
            ("cocondenser", DEEP, "roberta"),
            ("cotmae", DEEP, "electra"),
            ("retromae", DEEP, "wide"),
            ("localized", SHALLOW, "roberta"),
            ("pair", SHALLOW, "distilbert"),
            ("in_batch", SHALLOW, "electra"),
            ("moco", SHALLOW, "mpnet"),
            ("adversarial", SHALLOW, "modernbert"),
            ("finetune", SHALLOW, "t5_encoder"),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "configs", "backbone"), COVER)
def test_three_steps_lower_the_loss(name: str, configs: Any, backbone: str) -> None:
    found = losses(name, configs[backbone])
    wanted = 0.98 if configs is DEEP else 1.0
    assert np.isfinite(found).all() and found[-1] < wanted * found[0], found


@pytest.mark.parametrize(
    ("name", "backbone", "message"),
    [
        ("localized", "t5_encoder", "T5 encoder has neither"),
        ("retromae", "electra", "position embeddings of this ELECTRA are narrower"),
        ("retromae", "modernbert", "ModernBERT has no position embeddings"),
    ],
)
def test_an_encoder_that_does_not_suit_is_refused(name: str, backbone: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        losses(name, SHALLOW[backbone])
