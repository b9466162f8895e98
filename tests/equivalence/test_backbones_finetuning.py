"""Every encoder under fine-tuning, PAIR, AugTriever and as a cross-encoder: the loss goes down."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
import toy_configs

from qac_jax.errors import UserError
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.pair import Pair


LENGTH, SIZE = 8, 4
CONFIGS = toy_configs.every(LENGTH, num_layers=1)
OBJECTIVES = ["localized", "pair", "augtriever", "moco", "pointwise", "finetune"]
# Each encoder and each objective is met once.
COVER = list(zip(CONFIGS, OBJECTIVES, strict=True))


def objective_of(name: str, config: BackboneConfig) -> Any:
    dual = DualEncoder(DualEncoderConfig(config, pooling="mean", projection=6))
    made = {
        "finetune": lambda: Finetune(dual),
        "pair": lambda: Pair(dual, alpha=0.2),
        "augtriever": lambda: InBatch(dual),
        "moco": lambda: MoCo(dual, queue_size=8),
        "pointwise": lambda: Pointwise(CrossEncoder(config, labels=2), adversarial_step=0.01),
        "localized": lambda: Localized(CrossEncoder(config)),
    }
    return made[name]()


def batch_for(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    features: dict[str, dict[str, tuple[int, ...]]] = {
        "pointwise": {"pair": (SIZE, LENGTH)},
        "localized": {"pairs": (SIZE, 2, LENGTH)},
        "augtriever": {"passage": (SIZE, LENGTH), "context": (SIZE, LENGTH)},
        "moco": {"passage": (SIZE, LENGTH), "context": (SIZE, LENGTH)},
    }
    shapes = features.get(name, {"query": (SIZE, LENGTH), "passages": (SIZE, 2, LENGTH)})
    batch: dict[str, np.ndarray] = {"label": np.arange(SIZE, dtype=np.int32) % 2}
    for feature, shape in shapes.items():
        lengths = rng.integers(3, LENGTH + 1, shape[:-1]).astype(np.int32)
        ids = rng.integers(5, 64, shape).astype(np.int32)
        batch[feature] = np.where(np.arange(LENGTH) < lengths[..., None], ids, 0).astype(np.int32)
        batch[f"{feature}_length"] = lengths
        batch[f"{feature}_types"] = (np.arange(LENGTH) >= 3).astype(np.int32) * np.ones_like(ids)
    return batch


def random_params(shapes: Any) -> Any:
    """Parameters without compiling anything."""
    rng = np.random.default_rng(0)

    def drawn(path: Any, x: Any) -> np.ndarray:
        noise = rng.normal(0, 0.1, x.shape).astype(np.float32)
        return noise + 1 if path[-1].key == "scale" else noise

    return jax.tree_util.tree_map_with_path(drawn, shapes)


def losses(name: str, config: BackboneConfig, steps: int = 3) -> list[float]:
    """The loss of one batch before each step, and after the last."""
    objective = objective_of(name, config)
    variables = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    variables = {**variables, "params": random_params(variables["params"])}
    if "momentum" in variables:
        keys = np.random.default_rng(1).normal(size=variables["queue"]["keys"].shape)
        variables["momentum"] = variables["params"]
        variables["queue"] = {"keys": keys.astype(np.float32), "pointer": np.int32(0)}
    batch = jax.jit(objective.prepare)(batch_for(name), jax.random.key(1))
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, Any]:
        def loss(params: Any) -> Any:
            return objective.loss({**variables, "params": params}, batch, jax.random.key(2), False)[
                0
            ]

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params, found = variables["params"], []
    state = optimizer.init(params)
    for _ in range(steps + 1):
        params, state, value = step(params, state)
        found.append(float(value))
    return found


@pytest.mark.parametrize(("backbone", "name"), COVER)
def test_three_steps_lower_the_loss(backbone: str, name: str) -> None:
    found = losses(name, CONFIGS[backbone])
    assert np.isfinite(found).all() and found[-1] < found[0], found


@pytest.mark.parametrize("name", ["pointwise", "localized"])
def test_a_t5_encoder_scores_no_pairs(name: str) -> None:
    with pytest.raises(UserError, match="T5 encoder has neither"):
        losses(name, CONFIGS["t5_encoder"])
