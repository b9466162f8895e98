"""Dual and cross encoders: towers, pooling, projection, normalisation, scale."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig, l2_normalize
from qac_jax.models.heads import mean_pool


CONFIG = BertConfig(
    vocab_size=40, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16
)
IDS = np.random.default_rng(0).integers(1, 40, (3, 8)).astype(np.int32)
LENGTHS = np.array([8, 5, 2], np.int32)


def _dual(**fields: Any) -> tuple[DualEncoder, Any]:
    model = DualEncoder(DualEncoderConfig(CONFIG, **fields))
    variables = jax.jit(model.init)(jax.random.key(0), IDS, LENGTHS)
    return model, nn.meta.unbox(variables)


def test_tied_towers_share_everything_and_untied_ones_nothing() -> None:
    model, variables = _dual()
    assert set(variables["params"]) == {"encoder"}
    query, passage = (model.apply(variables, IDS, LENGTHS, side=s) for s in ("query", "passage"))
    np.testing.assert_array_equal(query, passage)
    model, variables = _dual(tied=False, projection=4)
    assert set(variables["params"]) == {"query", "passage"}
    assert set(variables["params"]["query"]) == {"backbone", "projection"}
    passage = model.apply(variables, IDS, LENGTHS)
    query = model.apply(variables, IDS, LENGTHS, side="query")
    assert query.shape == passage.shape == (3, 4)
    assert model.config.width == 4
    assert not np.allclose(query, passage)

    def total(variables: Any) -> jax.Array:
        return model.apply(variables, IDS, LENGTHS, side="query").sum()

    gradient = jax.jit(jax.grad(total))(variables)["params"]
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient["passage"]))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient["query"]))


def test_pooling_projection_and_scale() -> None:
    """Against the same steps by hand, on the BERT of the tower."""
    options = {"projection": 6, "projection_activation": "tanh", "normalize": True, "scale": 20.0}
    for pooling in ("cls", "mean"):
        model, variables = _dual(pooling=pooling, **options)
        tower = variables["params"]["encoder"]
        last = np.asarray(Bert(CONFIG).apply({"params": tower["backbone"]}, IDS, LENGTHS).last)
        rows = [
            h[:n].mean(0) if pooling == "mean" else h[0] for h, n in zip(last, LENGTHS, strict=True)
        ]
        vector = np.tanh(
            np.stack(rows) @ tower["projection"]["kernel"] + tower["projection"]["bias"]
        )
        vector /= np.linalg.norm(vector, axis=-1, keepdims=True)
        passage = model.apply(variables, IDS, LENGTHS)
        query = model.apply(variables, IDS, LENGTHS, side="query")
        np.testing.assert_allclose(passage, vector, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(query, 20 * vector, rtol=1e-5, atol=2e-5)


def test_mean_pool_and_normalize_at_the_edges() -> None:
    hidden = jnp.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_allclose(mean_pool(hidden, None), hidden.mean(1))
    np.testing.assert_allclose(mean_pool(hidden, jnp.array([0, 2]))[0], 0)
    zero = jnp.zeros((1, 4))
    np.testing.assert_array_equal(l2_normalize(zero), zero)
    assert np.isfinite(jax.grad(lambda x: l2_normalize(x).sum())(zero)).all()


def test_cross_encoder_dropout_and_labels() -> None:
    config = dataclasses.replace(CONFIG, pooler=True, hidden_dropout=0.0, attention_dropout=0.0)
    keys = jax.random.split(jax.random.key(1), 3)
    for labels in (1, 2):
        model = CrossEncoder(config, labels=labels, classifier_dropout=0.5)
        variables = model.init(jax.random.key(0), IDS, LENGTHS)
        plain = model.apply(variables, IDS, LENGTHS)
        assert plain.shape == (3, labels)
        assert not np.allclose(plain, model.apply(variables, IDS, LENGTHS, None, keys))
        default = dataclasses.replace(model, classifier_dropout=None)
        same = default.apply(variables, IDS, LENGTHS, None, keys)
        np.testing.assert_array_equal(same, plain)  # the BERT's dropout is 0


def test_bad_configurations() -> None:
    with pytest.raises(UserError, match="did you mean 'tanh'"):
        DualEncoderConfig(CONFIG, projection=4, projection_activation="tan")
    with pytest.raises(UserError, match="pooler=True"):
        CrossEncoder(CONFIG).init(jax.random.key(0), IDS, LENGTHS)
