"""Sharded initialisation and forward on eight devices equal one device; shardings as stored."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.hub import backbones
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Runtime
from qac_jax.models.t5 import T5, T5Config
from qac_jax.training import mesh as meshes


STORED = Path(__file__).parent / "parameter_shardings.json"
CONFIG = BertConfig(
    64, 16, 2, 4, 32, 16, hidden_dropout=0.1, attention_dropout=0.1, pooler=True, mlm_head=True
)
# d_kv * heads differs from d_model; gated and untied.
T5_CONFIG = T5Config(
    64, 16, 8, 32, 2, 2, 4, 8, 16, feed_forward="gated-gelu", tied=False, scaled=False
)
BATCH, LENGTH, TARGET = 8, 8, 3
IDS = np.random.default_rng(0).integers(1, CONFIG.vocab_size, (BATCH, LENGTH)).astype(np.int32)
TARGETS = np.random.default_rng(1).integers(2, 64, (BATCH, TARGET)).astype(np.int32)
LENGTHS = np.array([8, 3, 5, 8, 2, 7, 6, 4], np.int32)


def _models() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Modules and their inputs."""
    scan = Runtime(scan=True)
    loop = Runtime()
    vectors = np.ones((BATCH, 16), np.float32), np.ones((BATCH, LENGTH, 16), np.float32)
    dual = DualEncoderConfig(CONFIG, tied=False, pooling="mean", projection=8, normalize=True)
    return {
        "bert": (Bert(CONFIG, loop), (IDS, LENGTHS)),
        "bert_scan": (Bert(CONFIG, scan), (IDS, LENGTHS)),
        "bidirectional_head": (BidirectionalHead(CONFIG, loop, 1), (*vectors, LENGTHS)),
        "causal_decoder_scan": (CausalDecoder(CONFIG, scan, 2, 3), (*vectors, LENGTHS)),
        "dual_encoder": (DualEncoder(dual, scan), (IDS, LENGTHS)),
        "cross_encoder": (CrossEncoder(CONFIG, scan, labels=2), (IDS, LENGTHS)),
        "t5": (T5(T5_CONFIG, scan), (IDS, LENGTHS, TARGETS)),
    }


def _abstract(name: str) -> Any:
    module, inputs = _models()[name]
    return jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))


def _functions(name: str) -> tuple[Callable[[], Any], Callable[..., Any], tuple[Any, ...]]:
    """Initialisation, forward pass with dropout, and the inputs of the latter."""
    module, inputs = _models()[name]
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), jnp.arange(BATCH))

    def init() -> Any:
        return nn.meta.unbox(module.init(jax.random.key(0), *inputs))

    def forward(variables: Any, ids: Any, lengths: Any, keys: Any) -> Any:
        return module.apply(variables, ids, lengths, None, keys)

    return init, forward, (*inputs, keys)


@functools.cache
def _on_one_device(name: str) -> tuple[Any, Any]:
    init, forward, inputs = _functions(name)
    variables = jax.jit(init)()
    return variables, jax.jit(forward)(variables, *inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [("bert_scan", (2, 4, 1)), ("dual_encoder", (2, 2, 2)), ("bert_scan", (8, 1, 1))],
    ids=str,
)
def test_sharded_is_single_device(name: str, shape: tuple[int, int, int]) -> None:
    init, forward, inputs = _functions(name)
    mesh = meshes.make_mesh(shape)
    shardings = meshes.shardings(_abstract(name), mesh)
    rows = meshes.batch_sharding(mesh)
    with meshes.use(mesh):
        variables = jax.jit(init, out_shardings=shardings)()
        output = jax.jit(forward)(variables, *(jax.device_put(x, rows) for x in inputs))
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        assert len(leaf.sharding.device_set) == 8, jax.tree_util.keystr(path)
    _close((variables, output), _on_one_device(name))
    vectors = output.cls if name == "bert_scan" else output
    assert vectors.sharding.is_equivalent_to(rows, vectors.ndim), "the batch was gathered"


def forced(module: T5, variables: Any, ids: Any, lengths: Any, targets: Any) -> Any:
    return module.apply(variables, ids, lengths, targets)


def cached(module: T5, variables: Any, ids: Any, lengths: Any, targets: Any) -> Any:
    memory = module.apply(variables, ids, lengths, method="encode")
    cache = module.apply(variables, memory, lengths, TARGET, method="init_cache")
    steps = []
    for position in range(TARGET):
        logits, cache = module.apply(variables, targets[:, position], cache, method="step")
        steps.append(logits)
    return jnp.stack(steps, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "function"), [((2, 4, 1), forced), ((2, 2, 2), cached)])
def test_t5_is_that_of_one_device_through_the_cache_too(shape: Any, function: Any) -> None:
    module, inputs = T5(T5_CONFIG, Runtime(scan=True)), (IDS, LENGTHS, TARGETS)
    rng, shapes = np.random.default_rng(0), backbones.new_parameters(module, abstract=True)
    drawn = jax.tree.map(lambda x: rng.normal(0.1, 0.3, x.shape).astype(np.float32), shapes)
    expected = jax.jit(functools.partial(forced, module))({"params": drawn}, *inputs)
    mesh = meshes.make_mesh(shape)
    with meshes.use(mesh):
        placed = jax.device_put({"params": drawn}, meshes.shardings(_abstract("t5"), mesh))
        rows = [jax.device_put(x, meshes.batch_sharding(mesh)) for x in inputs]
        logits = jax.jit(functools.partial(function, module))(placed, *rows)
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


def _close(actual: Any, expected: Any) -> None:
    def close(path, a, b):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=name)

    jax.tree_util.tree_map_with_path(close, actual, expected)


def test_parameter_shardings_are_the_stored_ones() -> None:
    """Every parameter's place on the (2, 2, 2) mesh; to accept a change: run this file."""
    assert STORED.is_file()
    assert shardings_now() == json.loads(STORED.read_text())


def shardings_now() -> dict[str, dict[str, str]]:
    """Model -> parameter path -> shape and mesh axes."""
    mesh = meshes.make_mesh((2, 2, 2))
    found: dict[str, dict[str, str]] = {}
    for name in _models():
        abstract = _abstract(name)
        places = meshes.shardings(abstract, mesh)
        leaves = jax.tree_util.tree_leaves_with_path(nn.meta.unbox(abstract))
        found[name] = {
            jax.tree_util.keystr(path, simple=True, separator="/"): (
                f"{list(leaf.shape)} {list(place.spec)}"
            )
            for (path, leaf), place in zip(leaves, jax.tree.leaves(places), strict=True)
        }
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    STORED.write_text(json.dumps(shardings_now(), indent=1) + "\n")
