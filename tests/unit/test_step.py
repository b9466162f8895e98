"""The state of a run: collections of an objective, running means, what a run starts from."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

from qac_jax.errors import UserError
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.objective import Context
from qac_jax.training import mesh as meshes
from qac_jax.training import train
from qac_jax.training.step import Engine


MESH = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
TINY = BertConfig(
    vocab_size=32, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16
)


def engine(objective: Any, **options: Any) -> Engine:
    return Engine(objective, optax.sgd(0.1), MESH, meshes.rules_named("default"), **options)


def test_the_objective_state_advances_once_a_step() -> None:
    run = engine(toy.ToyContrastive(chunk=4, stateful=True))
    state, step = run.create(), run.compile_step(toy.batch(16))
    for _ in range(2):
        state, metrics = step(state, meshes.place(toy.batch(16), MESH))
    assert int(state.variables["queue"]["seen"]) == 32
    assert set(metrics) == {"loss", "top1", "grad_norm"}
    assert int(state.step) == 2


def test_state_cannot_be_split() -> None:
    objective = toy.ToyContrastive(stateful=True, splittable=True)
    with pytest.raises(TypeError, match="must not be splittable"):
        engine(objective, microbatch=8).compile_step(toy.batch(16))


def test_the_running_mean_of_parameters() -> None:
    run = engine(toy.ToyMlm(), ema=0.75)
    state, step = run.create(), run.compile_step(toy.batch(16))
    before = jax.device_get(state.params)
    state, _ = step(state, meshes.place(toy.batch(16), MESH))
    for name, mean in jax.device_get(state.ema).items():
        expected = 0.75 * before[name] + 0.25 * np.asarray(state.params[name])
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)
        assert np.abs(mean - before[name]).max() > 0


def test_some_given_parameters_and_new_ones_for_the_rest() -> None:
    table = np.full((32, 16), 0.5, np.float32)
    state = engine(toy.ToyMlm()).create({"table": table})
    fresh = engine(toy.ToyMlm()).create()
    np.testing.assert_array_equal(state.params["table"], table)
    np.testing.assert_array_equal(state.params["up"], fresh.params["up"])


def test_collections_are_made_from_given_parameters() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithMomentum(toy.ToyContrastive):
        def init(self, key: jax.Array) -> Any:
            variables = super().init(key)
            return {**variables, **self.initial_state(variables["params"])}

        def initial_state(self, params: Any) -> Any:
            return {"momentum": jax.tree.map(jnp.copy, params)}

    state = engine(WithMomentum()).create({"table": np.ones((32, 16), np.float32)})
    np.testing.assert_array_equal(state.variables["momentum"]["table"], state.params["table"])


def test_an_objective_takes_the_shape_of_what_it_starts_from() -> None:
    objective = Mlm(Bert(BertConfig()))
    loaded, params = objective.start_from(Bert(TINY), {"x": 1})
    assert loaded.model.config == TINY and params == {"x": 1}
    with pytest.raises(UserError, match="Mlm trains a Bert, .* those of a T5"):
        objective.start_from(T5(T5Config()), {})


def test_pretraining_goes_on_from_a_retriever() -> None:
    retriever = DualEncoder(DualEncoderConfig(TINY))
    tower = {"encoder": {"backbone": {"x": 1}}}
    loaded, params = Mlm(Bert(BertConfig())).start_from(retriever, tower)
    assert loaded.model.config == TINY and params == {"x": 1}
    with pytest.raises(UserError, match="those of a DualEncoder"):  # which of the two towers?
        untied = DualEncoder(DualEncoderConfig(TINY, tied=False))
        Mlm(Bert(BertConfig())).start_from(untied, tower)


def test_parameters_are_matched_by_name_and_shape() -> None:
    target = {"a": {"b": np.zeros(3), "c": np.zeros(2)}}
    kept, unused, fresh = train.matching({"a": {"b": np.ones(3)}, "z": np.ones(1)}, target)
    assert list(kept["a"]) == ["b"] and unused == ["z"] and fresh == ["a/c"]
    with pytest.raises(UserError, match=r"a/b to start from has the shape \(4,\), .* \(3,\)"):
        train.matching({"a": {"b": np.ones(4)}}, target)
    with pytest.raises(UserError, match="no parameter to start from belongs to the model"):
        train.matching({"q": np.ones(4)}, target)


def test_precision_reaches_the_model() -> None:
    assert train.precision_here("auto") == "float32"  # on CPUs
    objective = Mlm(Bert(TINY)).bind(Context(precision="bfloat16"))
    assert objective.model.runtime.dtype == "bfloat16"
    with pytest.raises(UserError, match="precision='half' is not one of"):
        train.precision_here("half")


def test_what_is_exported_has_no_pretraining_head() -> None:
    objective = Mlm(Bert(dataclasses.replace(TINY, pooler=True)))
    params = engine(objective).create().params
    module, kept = train.exported(objective, params)
    assert isinstance(module, Bert) and not module.config.pooler and not module.config.mlm_head
    assert set(params) - set(kept) == {"mlm_head"}
