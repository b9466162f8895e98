"""Optimisers: which parameters decay and move, stacked layers, clipping, settings refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qac_jax.errors import UserError
from qac_jax.models.transformer import stack_layers, unstack_layers
from qac_jax.training import optimizers
from qac_jax.training.optimizers import OPTIMIZERS, Optimizer, is_stacked


def loop_tree(seed: int) -> dict[str, Any]:
    """Named as the models name theirs: three numbered layers, a head, an embedding."""
    keys = iter(jax.random.split(jax.random.key(seed), 20))

    def layer() -> dict[str, Any]:
        return {
            "query": {
                "kernel": jax.random.normal(next(keys), (4, 3)),
                "bias": jax.random.normal(next(keys), (3,)),
            },
            "norm": {"scale": jax.random.normal(next(keys), (3,))},
        }

    return {
        "embeddings": {"word": {"embedding": jax.random.normal(next(keys), (5, 4))}},
        "layers": {str(i): layer() for i in range(3)},
        "mlm_head": {"bias": jax.random.normal(next(keys), (5,))},
    }


def stacked(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "layers": stack_layers(tree["layers"])}


def run(optimizer: Optimizer, params: Any, grads: list[Any]) -> Any:
    tx = optimizer.build(100, params)
    state = tx.init(params)
    step = jax.jit(tx.update)
    for gradient in grads:
        updates, state = step(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), one, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_layers_move_as_numbered_ones(name: str) -> None:
    optimizer = Optimizer(name, 0.1, schedule_name="constant", weight_decay=0.1, clip_norm=1.0)
    params, grads = loop_tree(0), [loop_tree(1), loop_tree(2)]
    expected = run(optimizer, params, grads)
    found = run(optimizer, stacked(params), [stacked(g) for g in grads])
    assert_equal({**found, "layers": unstack_layers(found["layers"])}, expected)


def test_biases_and_norms_are_not_decayed() -> None:
    params = loop_tree(0)
    zero = jax.tree.map(jnp.zeros_like, params)
    optimizer = Optimizer("adamw", 0.5, weight_decay=0.1, schedule_name="constant")
    moved = run(optimizer, params, [zero])
    for path, before in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        after = dict(_flat(moved))[name]
        factor = 1.0 if name.endswith(("bias", "scale")) else 0.95
        np.testing.assert_allclose(after, before * factor, rtol=1e-6, err_msg=name)


def _flat(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


@pytest.mark.parametrize("form", ["numbered", "stacked"])
def test_frozen_parameters_stay_and_do_not_count_in_the_clipping(form: str) -> None:
    params, gradient = loop_tree(0), loop_tree(1)
    if form == "stacked":
        params, gradient = stacked(params), stacked(gradient)
    optimizer = Optimizer(
        "adamw",
        0.1,
        eps=1.0,  # so that the size of the gradient matters
        clip_norm=0.5,
        schedule_name="constant",
        frozen=("^embeddings", "layers/[01]/"),
    )
    moved = run(optimizer, params, [gradient])
    layers = moved["layers"] if form == "numbered" else unstack_layers(moved["layers"])
    assert_equal(moved["embeddings"], params["embeddings"])
    before = loop_tree(0)["layers"]
    assert_equal([layers["0"], layers["1"]], [before["0"], before["1"]])

    part = {"2": loop_tree(0)["layers"]["2"], "mlm_head": loop_tree(0)["mlm_head"]}
    part_gradient = {"2": loop_tree(1)["layers"]["2"], "mlm_head": loop_tree(1)["mlm_head"]}
    alone = Optimizer("adamw", 0.1, eps=1.0, clip_norm=0.5, schedule_name="constant")
    expected = run(alone, part, [part_gradient])
    assert_equal({"2": layers["2"], "mlm_head": moved["mlm_head"]}, expected)


def test_lamb_moves_each_parameter_by_its_own_norm() -> None:
    params = {"a": {"kernel": jnp.full((2, 2), 3.0)}, "b": {"kernel": jnp.zeros((2,))}}
    grads = {"a": {"kernel": jnp.ones((2, 2))}, "b": {"kernel": jnp.ones((2,))}}
    optimizer = Optimizer("lamb", 0.1, weight_decay=0.0, clip_norm=0.0, schedule_name="constant")
    moved = run(optimizer, params, [grads])
    np.testing.assert_allclose(moved["a"]["kernel"], 3.0 - 0.1 * 3.0, rtol=1e-5)
    np.testing.assert_allclose(moved["b"]["kernel"], -0.1, rtol=1e-5)


def test_lamb_adapts_what_is_not_decayed_only_when_asked() -> None:
    params, grads = {"bias": jnp.full((4,), 3.0)}, {"bias": jnp.ones((4,))}
    for adapted, moved_by in ((False, 0.1), (True, 0.3)):
        optimizer = Optimizer("lamb", 0.1, adapt_excluded=adapted, schedule_name="constant")
        found = run(optimizer, params, [grads])
        np.testing.assert_allclose(found["bias"], 3.0 - moved_by, rtol=1e-5)


def test_clipping_scales_the_whole_gradient() -> None:
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    for epsilon in (0.0, 1.0):
        clip = optimizers.clip_by_global_norm(2.0, epsilon)
        found, _ = clip.update(grads, clip.init(grads))
        np.testing.assert_allclose(found["b"], 4.0 * 2.0 / (5.0 + epsilon), rtol=1e-6)
    small = jax.tree.map(lambda g: g / 10, grads)
    assert_equal(clip.update(small, clip.init(grads))[0], small)
    zero = jax.tree.map(jnp.zeros_like, grads)
    clip = optimizers.clip_by_global_norm(2.0, 0.0)
    assert_equal(clip.update(zero, clip.init(grads))[0], zero)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adam"}, "did you mean 'adamw'"),
        ({"schedule_name": "lineal"}, "did you mean 'linear'"),
        ({"b2": 1.0}, "b2 = 1.0; expected"),
        ({"warmup_ratio": 3.0}, "warmup_ratio = 3.0; expected"),
        ({"frozen": "layers"}, "expected a list"),
        ({"frozen": ("(",)}, "not a regular expression"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Optimizer(**settings)


def test_a_freezing_pattern_without_a_parameter_is_refused() -> None:
    with pytest.raises(UserError, match="'layers/7' matches no parameter"):
        Optimizer(frozen=("embeddings", "layers/7")).build(10, loop_tree(0))
    with pytest.raises(UserError, match="nothing would be trained"):
        Optimizer(frozen=("",)).build(10, loop_tree(0))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("layers/mlp/kernel", True),
        ("layers/0/mlp/kernel", False),
        ("layers/layers/mlp/kernel", True),
        ("layers/layers/0/mlp/kernel", False),
        ("layers/stack_bias/embedding", False),
    ],
)
def test_parts_beside_a_stack_are_no_layers(path: str, expected: bool) -> None:
    keys = tuple(jax.tree_util.DictKey(name) for name in path.split("/"))
    assert is_stacked(keys) == expected
