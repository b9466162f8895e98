"""Dropout, run-time options, activations, initial values."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models import layers
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.heads import CausalDecoder
from qac_jax.models.layers import Runtime, dropout


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
