"""Dropout, run-time options, activations, initial values; attention against a plain softmax."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models import attention, layers, packing
from qac_jax.models.attention import attend, in_one_kernel
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.heads import CausalDecoder
from qac_jax.models.layers import Runtime, dropout
from qac_jax.training import mesh as meshes


def _keys(count: int) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(11), jnp.arange(count))


def _kept(keys: Any, site: int, shape: tuple[int, ...], rate: float):
    ones = jnp.ones((keys.shape[0], *shape))
    return np.asarray(dropout(ones, keys, site, rate)) > 0


def test_dropout_rate_and_scale() -> None:
    x = jnp.full((16, 64, 128), 3.0)
    for rate in (0.02, 0.1, 0.5):
        y = np.asarray(dropout(x, _keys(16), 4, rate))
        assert set(np.unique(y)) == {0.0, np.float32(3.0 * np.float32(1 / (1 - rate)))}
        count, dropped = y.size, (y == 0).mean()
        assert abs(dropped - rate) < 5 * np.sqrt(rate * (1 - rate) / count)
        # Nor does any row, column or example get more than its share.
        for axes in ((0, 1), (0, 2), (1, 2)):
            share = (y == 0).mean(axes)
            deviation = np.sqrt(rate * (1 - rate) / (count / share.size))
            assert np.abs(share - rate).max() < 5 * deviation


def test_dropout_masks_are_independent() -> None:
    """Of other sites, other rows, other steps' keys, and of the neighbouring places."""
    shape, rate = (64, 64), 0.5
    keys = _keys(2)
    base = _kept(keys, 0, shape, rate)
    others = {
        "site": _kept(keys, 1, shape, rate)[0],
        "row": base[1],
        "step": _kept(layers.fold(keys, 1), 0, shape, rate)[0],
        "right": np.roll(base[0], 1, -1),
        "below": np.roll(base[0], 1, 0),
        "transposed": base[0].T,
    }
    for name, other in others.items():
        agreement = (base[0] == other).mean()
        assert abs(agreement - 0.5) < 5 * 0.5 / 64, name


CONFIG = BertConfig(500, 96, 2, 4, 160, 40, pooler=True, mlm_head=True)


def test_initial_values() -> None:
    """N(0, 0.02), zero biases, unit norms; the causal decoder's residual projections smaller."""
    key, runtime = jax.random.key(0), Runtime(scan=True)
    bert = jax.jit(Bert(CONFIG, runtime).init)(key, jnp.ones((1, 4), jnp.int32))["params"]
    up = nn.meta.unbox(bert["layers"])["mlp"]["up"]["kernel"]
    assert up.shape[0] == 2 and not np.allclose(up[0], up[1])
    rest = jnp.ones((1, 4, 96))
    decoder = CausalDecoder(CONFIG, runtime, num_layers=2)
    head = jax.jit(decoder.init)(key, rest[:, 0], rest)["params"]
    for params, residual in ((bert, 0.02), (head, 0.02 / np.sqrt(2 * 2))):
        for path, leaf in jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            value = np.asarray(leaf)
            assert value.dtype == np.float32, name
            if name.endswith(("scale", "bias")):
                assert (value == name.endswith("scale")).all(), name
            else:
                small = name.endswith(("output/kernel", "down/kernel"))
                deviation = residual if small else 0.02
                assert abs(value.std() / deviation - 1) < 5 / np.sqrt(2 * value.size), name
                assert abs(value.mean()) < 5 * deviation / np.sqrt(value.size), name


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(UserError, match="41 tokens do not fit this model, which has 40"):
        Bert(CONFIG).init(jax.random.key(0), jnp.ones((1, 41), jnp.int32))


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


def test_the_gradient_of_what_all_tokens_share() -> None:
    """It is the sum over tokens, by a product on a CPU, whose reductions are slow."""
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(6, 50, 40)).astype(np.float32) for _ in range(2))

    def gradient(vector: Any) -> Any:
        return jax.vjp(lambda v: x * layers.spread(v, jnp.asarray(x)), vector)[1](g)[0]

    vector = jnp.ones(40)
    wanted = np.sum(x.astype(np.float64) * g, axis=(0, 1))
    np.testing.assert_allclose(gradient(vector), wanted, rtol=1e-5, atol=1e-5)
    assert ("reduce_sum" in str(jax.make_jaxpr(gradient)(vector))) == (packing.platform() != "cpu")
