"""Attention against a plain softmax; windows; when a kernel computes it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.models import attention, packing
from qac_jax.models.attention import attend, in_one_kernel
from qac_jax.models.bert import BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.training import mesh as meshes


BATCH, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 5, 7, 4
LENGTHS = np.array([7, 1, 4])


def _inputs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (QUERIES, KEYS, KEYS)
    query, key, value = (rng.normal(size=(BATCH, HEADS, n, WIDTH)) for n in shapes)
    return query, key, value


def _plain(query, key, value, visible, bias=0.0):
    scores = np.where(visible, query @ key.swapaxes(-1, -2) + bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def test_attend_is_softmax() -> None:
    visible = np.tri(QUERIES, KEYS, 2, bool)
    bias = np.random.default_rng(9).normal(size=(1, HEADS, QUERIES, KEYS))
    seen = visible & (np.arange(KEYS) < LENGTHS[:, None, None, None])
    with jax.enable_x64(True):
        runtime = Runtime(dtype="float64", remat="attention")
        query, key, value = map(jnp.asarray, _inputs())
        masks: Any = {"visible": jnp.asarray(visible), "bias": jnp.asarray(bias)}
        bare = attend(query, key, value, None, runtime)
        masked = attend(query, key, value, jnp.asarray(LENGTHS), runtime, **masks)
    np.testing.assert_allclose(bare, _plain(*_inputs(), True), rtol=1e-12)
    np.testing.assert_allclose(masked, _plain(*_inputs(), seen, bias), rtol=1e-12)


@pytest.mark.parametrize("masks", ["lengths and bias", "of texts"])
def test_blocks_of_texts_are_the_whole(monkeypatch, masks: str) -> None:
    """On a CPU; values and gradients, with dropout, to the last bits of fp64."""
    rng = np.random.default_rng(1)
    texts, length = 6, 5
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with jax.enable_x64(True):
        shape = (texts, HEADS, length, WIDTH)
        inputs = [jnp.asarray(rng.normal(size=shape)) for _ in range(3)]
        some, lengths = rng.random((texts, 1, length, length)) < 0.6, None
        seen: Any = {"visible": jnp.asarray(some | np.eye(length, dtype=bool))}
        if masks == "lengths and bias":
            lengths = jnp.array([5, 1, 4, 2, 5, 3])
            seen = {"bias": jnp.asarray(rng.normal(size=(1, HEADS, length, length)))}
        keys = jax.random.split(jax.random.key(2), texts)

        def run(block: int) -> list[jax.Array]:
            monkeypatch.setattr(attention, "_BLOCK", block)

            def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
                runtime = Runtime(dtype="float64")
                out = attend(q, k, v, lengths, runtime, **seen, keys=keys, rate=0.2)
                return jnp.square(out).sum(), out

            loops = "scan[" in str(jax.make_jaxpr(total)(*inputs))
            assert loops == (block < 1 << 20)
            gradients, out = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*inputs)
            return [out, *gradients]

        of_text = HEADS * length * length * 8
        whole = run(1 << 20)
        for block in (of_text, 3 * of_text):
            for one, other in zip(whole, run(block), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def test_attention_in_one_kernel_is_for_texts_on_one_modern_gpu() -> None:
    config = BertConfig(attention_dropout=0.1)

    def used(config: BertConfig = config, **fields: Any) -> bool:
        return in_one_kernel(Runtime(**{"dtype": "bfloat16", **fields}), config)

    assert not used()
    with packing.made_for("gpu"), jax.set_mesh(meshes.make_mesh()):
        assert not used()
    with packing.made_for("gpu"), jax.set_mesh(meshes.make_mesh(devices=jax.devices()[:1])):
        assert used() and not used(attention="xla") and not used(dtype="float32")
        assert not used(BertConfig(hidden_size=120, num_heads=5))  # heads of 24
