"""T5 on eight devices equals T5 on one, teacher-forced and through the cache."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import backbones
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.training import mesh as meshes


STORED = Path(__file__).parent / "t5_parameter_shardings.json"
CONFIG = T5Config(
    vocab_size=64,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=4,
    num_buckets=8,
    max_distance=16,
    feed_forward="gated-gelu",
    tied=False,
    scaled=False,
)
MODULE = T5(CONFIG, Runtime(scan=True))
BATCH, SOURCE, TARGET = 8, 6, 3
RNG = np.random.default_rng(0)
IDS = RNG.integers(2, 64, (BATCH, SOURCE)).astype(np.int32)
TARGETS = RNG.integers(2, 64, (BATCH, TARGET)).astype(np.int32)
LENGTHS = np.array([6, 3, 5, 6, 2, 4, 6, 1], np.int32)


@functools.cache
def variables() -> Any:
    shapes = backbones.new_parameters(MODULE, abstract=True)
    return {
        "params": jax.tree.map(lambda x: RNG.normal(0.1, 0.3, x.shape).astype(np.float32), shapes)
    }


def abstract() -> Any:
    init = functools.partial(MODULE.init, jax.random.key(0))
    return jax.eval_shape(init, IDS, LENGTHS, TARGETS)


def forced(variables: Any, ids: Any, lengths: Any, targets: Any) -> Any:
    return MODULE.apply(variables, ids, lengths, targets)


def cached(variables: Any, ids: Any, lengths: Any, targets: Any) -> Any:
    memory = MODULE.apply(variables, ids, lengths, method="encode")
    cache = MODULE.apply(variables, memory, lengths, TARGET, method="init_cache")
    steps = []
    for position in range(TARGET):
        logits, cache = MODULE.apply(variables, targets[:, position], cache, method="step")
        steps.append(logits)
    return jnp.stack(steps, axis=1)


@functools.cache
def on_one_device() -> np.ndarray:
    return np.asarray(jax.jit(forced)(variables(), IDS, LENGTHS, TARGETS))


@pytest.mark.parametrize(
    ("shape", "function"),
    [((8, 1, 1), forced), ((2, 4, 1), forced), ((2, 2, 2), cached)],
    ids=["data", "fsdp", "cached"],
)
def test_sharded_is_single_device(shape: tuple[int, int, int], function: Any) -> None:
    mesh, rules = meshes.make_mesh(shape), meshes.rules_named("default")
    shardings = meshes.shardings(abstract(), mesh, rules)
    rows = meshes.batch_sharding(mesh)
    with meshes.use(mesh, rules):
        placed = jax.device_put(variables(), shardings)
        inputs = [jax.device_put(x, rows) for x in (IDS, LENGTHS, TARGETS)]
        logits = jax.jit(function)(placed, *inputs)
    np.testing.assert_allclose(logits, on_one_device(), rtol=2e-5, atol=2e-5)


def test_parameter_shardings_are_the_stored_ones() -> None:
    """Every parameter's place on the (2, 2, 2) mesh; to accept a change: run this file."""
    assert shardings_now() == json.loads(STORED.read_text())


def shardings_now() -> dict[str, str]:
    """Parameter path -> shape and mesh axes."""
    mesh, rules = meshes.make_mesh((2, 2, 2)), meshes.rules_named("default")
    places = jax.tree.leaves(meshes.shardings(abstract(), mesh, rules))
    leaves = jax.tree_util.tree_leaves_with_path(nn.meta.unbox(abstract()))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{list(leaf.shape)} {list(place.spec)}"
        )
        for (path, leaf), place in zip(leaves, places, strict=True)
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    STORED.write_text(json.dumps(shardings_now(), indent=1) + "\n")
