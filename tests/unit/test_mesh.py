"""Meshes, rules and shardings, and what is said of those that do not fit."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from jax.sharding import PartitionSpec

from qac_jax.errors import UserError
from qac_jax.objectives.objective import Context
from qac_jax.training import mesh as meshes
from qac_jax.training.step import Engine


def boxed(names: tuple[str, ...], shape: tuple[int, ...]) -> Any:
    value: Any = jax.ShapeDtypeStruct(shape, jnp.float32)
    return {"params": {"w": nn.LogicallyPartitioned(value, names)}}


def test_sizes_fill_in_the_rest() -> None:
    assert meshes.mesh_sizes((-1, 2, 1), 8) == (4, 2, 1)
    assert meshes.mesh_sizes((2, 2, 2), 8) == (2, 2, 2)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 1, 1), "mesh=3x1x1 does not fit 8 device"),
        ((-1, 3, 1), "mesh=-1x3x1 does not fit 8 device"),
        ((-1, -1, 1), "at most one of them -1"),
        ((8, 1), "give three sizes"),
        ((8, 0, 1), "each 1 or more"),
    ],
)
def test_sizes_that_do_not_fit(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        meshes.mesh_sizes(shape, 8)


def test_axes_are_auto() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    assert mesh.axis_names == meshes.AXES
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_default_rules_cut_parameters_over_both_axes() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    places = meshes.shardings(
        boxed(("vocab", "embed"), (32, 16)), mesh, meshes.rules_named("default")
    )
    assert places["params"]["w"].spec == PartitionSpec("tensor", "fsdp")


def test_an_axis_of_size_one_is_left_out() -> None:
    mesh = meshes.make_mesh((8, 1, 1))
    # 31 would not be divisible by anything.
    places = meshes.shardings(
        boxed(("vocab", "embed"), (31, 17)), mesh, meshes.rules_named("default")
    )
    assert places["params"]["w"].spec == PartitionSpec(None, None)


@pytest.mark.parametrize("name", list(meshes.RULES))
def test_every_table_knows_every_name_of_the_models(name: str) -> None:
    names = {"vocab", "embed", "heads", "mlp", "positions", "types", "layers", "labels"}
    assert names | {"batch", "length"} == {logical for logical, _ in meshes.RULES[name]}


def test_indivisible_names_axis_size_and_remedy() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    with pytest.raises(
        UserError, match="w: its logical axis 'vocab' of 31 .*'tensor' of 2; pad it"
    ):
        meshes.shardings(boxed(("vocab", "embed"), (31, 16)), mesh, meshes.rules_named("default"))


def test_collision_names_both_axes() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    with pytest.raises(UserError, match="'heads' and 'mlp' are both cut over .*'tensor'"):
        meshes.shardings(boxed(("heads", "mlp"), (16, 16)), mesh, meshes.rules_named("default"))


def test_unknown_names_get_the_nearest() -> None:
    mesh = meshes.make_mesh((8, 1, 1))
    with pytest.raises(UserError, match="'embedd'.*did you mean 'embed'"):
        meshes.shardings(boxed(("embedd",), (16,)), mesh, meshes.rules_named("default"))
    with pytest.raises(UserError, match="did you mean 'tensor'"):
        meshes.rules_named("tensors")


def test_state_is_born_sharded_and_the_optimiser_mirrors_parameters() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    rules = meshes.rules_named("default")
    engine = Engine(toy.ToyMlm(), optax.adamw(1e-3), mesh, rules, ema=0.9)
    state = engine.create()
    table = PartitionSpec("tensor", "fsdp")
    assert state.params["table"].sharding.spec == table
    assert state.params["table"].addressable_shards[0].data.shape == (16, 8)
    assert state.opt_state[0].mu["table"].sharding.spec == table
    assert state.opt_state[0].nu["table"].sharding.spec == table
    assert state.opt_state[0].count.sharding.spec == PartitionSpec()
    assert state.ema["table"].sharding.spec == table


def test_given_parameters_take_the_place_of_new_ones() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    engine = Engine(toy.ToyMlm(), optax.sgd(0.1), mesh, meshes.rules_named("default"))
    params = jax.tree.map(lambda x: np.full(x.shape, 2.5, x.dtype), engine.abstract.params)
    state = engine.create(params)
    assert state.params["up"].sharding.spec == PartitionSpec("fsdp", "tensor")
    np.testing.assert_array_equal(state.params["up"], params["up"])


def test_rows_of_a_process() -> None:
    mesh = meshes.make_mesh((2, 2, 2))
    assert meshes.my_part(mesh) == (0, 1)
    placed = meshes.place(toy.batch(16), mesh)
    assert placed["tokens"].addressable_shards[0].data.shape == (4, 12)


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({}, 12, "batch_size=12 is not divisible by the 8 devices"),
        ({"microbatch": 12}, 32, "microbatch=12 does not divide batch_size=32"),
        ({"microbatch": 4}, 16, "microbatch=4 is not divisible by the 8 devices"),
    ],
)
def test_batches_that_do_not_fit(options: dict[str, Any], size: int, message: str) -> None:
    rules = meshes.rules_named("default")
    engine = Engine(toy.ToyMlm(), optax.sgd(0.1), meshes.make_mesh((8, 1, 1)), rules, **options)
    with pytest.raises(UserError, match=message):
        engine.check(size)


def test_microbatch_is_the_chunk_of_what_does_not_split() -> None:
    context = Context(chunk=4)
    assert toy.ToyContrastive().bind(context).chunk == 4
    assert toy.ToyMlm().bind(context).chunk == 0


@pytest.mark.parametrize(
    ("shape", "devices", "batch", "microbatch", "used"),
    [
        ((-1, 1, 1), 8, 64, 0, 8),
        ((-1, 1, 1), 8, 75, 0, 5),  # BEIR's script for MS MARCO
        ((-1, 1, 1), 16, 75, 0, 15),
        ((-1, 1, 1), 8, 75, 15, 5),
        ((-1, 1, 1), 8, 24, 3, 3),
        ((-1, 1, 1), 4, 7, 0, 1),
        ((-1, 2, 2), 8, 6, 0, 4),
        ((-1, 2, 1), 8, 75, 0, 8),  # parameters over two devices: refused by check_batch
        ((2, 4, 1), 8, 75, 0, 8),
    ],
)
def test_any_batch_has_its_devices(
    shape: tuple[int, ...], devices: int, batch: int, microbatch: int, used: int
) -> None:
    assert meshes.shared_by(shape, devices, batch, microbatch) == used


@pytest.mark.parametrize(
    ("devices", "batch", "microbatch", "used"),
    [(8, 75, 0, 8), (16, 75, 75, 16), (8, 75, 15, 5), (8, 7, 0, 7)],
)
def test_a_batch_that_is_filled_up_has_all_devices(
    devices: int, batch: int, microbatch: int, used: int
) -> None:
    assert meshes.shared_by((-1, 1, 1), devices, batch, microbatch, fills=True) == used


def test_copies_of_the_first_rows_fill_a_batch_up() -> None:
    mesh = meshes.mesh_for((-1, 1, 1), 13, fills=True)
    placed = meshes.place({"x": np.arange(13)}, mesh)["x"]
    assert mesh.size == 8 and placed.tolist() == [*range(13), 0, 1, 2]
    with pytest.raises(UserError, match="batch_size=5 is not divisible by the 8 devices"):
        meshes.check_batch(5, mesh, fills=True)
    assert meshes.largest_batch(mesh, 13, fills=True) == 13


def test_devices_that_are_left_out_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = meshes.mesh_for((-1, 1, 1), 75)
    assert mesh.size == 5 and meshes.my_part(mesh) == (0, 1)
    assert "shared by 5 of 8 devices" in capsys.readouterr().err
    meshes.check_batch(75, mesh)
    assert meshes.mesh_for((-1, 1, 1), 16).size == 8
