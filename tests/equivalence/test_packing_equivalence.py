"""Without padding a step is the padded one: loss, gradients, masks and dropout of each example."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from toy import collectives
from toy_objectives import assert_same, batch_for, engine, objective, one_step

from qac_jax.models import packing as rows
from qac_jax.models.packing import plan
from qac_jax.training import mesh as meshes
from qac_jax.training import step
from qac_jax.training.step import Engine


LENGTHS = np.array([3, 5, 4, 4, 7, 2, 5, 6], np.int32)
SIZE, LENGTH, ROOM = len(LENGTHS), 8, 40


def in_rows(x: np.ndarray, parts: int) -> np.ndarray:
    """The tokens [parts, ROOM, …] of padded texts, one text after the other."""
    result = np.zeros((parts, ROOM, *x.shape[2:]), x.dtype)
    for part, texts in enumerate(np.split(np.arange(SIZE), parts)):
        tokens = np.concatenate([x[text, : LENGTHS[text]] for text in texts])
        result[part, : len(tokens)] = tokens
    return result


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_hold_one_text_after_the_other(parts: int) -> None:
    x = np.arange(1.0, 1 + SIZE * LENGTH * 2, dtype=np.float32).reshape(SIZE, LENGTH, 2)
    expected = in_rows(x, parts)

    @jax.jit
    def run(x: Any, gradient: Any) -> Any:
        packed, fits = plan(jnp.asarray(LENGTHS), LENGTH, ROOM, parts)
        in_row, back = jax.vjp(packed.pack, x)
        few = plan(jnp.asarray(LENGTHS), LENGTH, int(LENGTHS.sum()) // parts - 1, parts)[1]
        return in_row, packed.unpack(in_row), packed.first(in_row, 2), back(gradient)[0], fits, few

    in_row, unpacked, first, gradient, fits, few = run(x, expected)
    assert fits and not few
    np.testing.assert_array_equal(in_row, expected)
    padded = np.where((np.arange(LENGTH) < LENGTHS[:, None])[..., None], x, 0)
    np.testing.assert_array_equal(unpacked, padded)
    np.testing.assert_array_equal(first, padded[:, :2])
    np.testing.assert_array_equal(gradient, padded)  # each reads what the other wrote


def test_the_room_is_that_of_the_fullest_row() -> None:
    batch: dict[str, np.ndarray] = {"tokens": np.zeros((SIZE, LENGTH)), "tokens_length": LENGTHS}
    assert step.shares_of(batch, 1, 1) == ((LENGTH, 9 / 16),)  # 36 of 64
    # Strided pieces: the even and the odd texts, each cut into two rows: 7, 12, 9 and 8 tokens.
    assert step.shares_of(batch, 2, 2) == ((LENGTH, 12 / 16),)
    batch |= {"query": np.zeros((SIZE, 16)), "query_length": np.ones(SIZE, np.int32)}
    assert step.shares_of(batch, 1, 1) == ((LENGTH, 9 / 16), (16, 5 / 16))
    assert rows.room_for(16, 5 / 16, SIZE) == 40


def test_a_program_for_each_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def compiled(engine: Engine, spec: Any, room: Any = ()) -> int:
        made.append(room)
        return len(made)

    monkeypatch.setattr(step, "compiled", compiled)
    batch, spec = batch_for("mlm", fill=0.7), dict[str, Any]()
    full = {**batch, "tokens_length": np.full_like(batch["tokens_length"], 12)}
    learner = engine(objective("mlm"))
    steps = step.programs(learner, spec, pack=True)
    assert [steps(each) for each in (batch, batch, full, batch)] == [1, 1, 2, 1]
    [(length, share)], padded = made
    assert length == 12 and share < 0.6 and padded == ()
    made.clear()
    assert step.programs(learner, spec)(batch) == 1 and made == [()]


@pytest.mark.slow
def test_moving_tokens_needs_no_communication() -> None:
    """Each device packs its own texts; devices only exchange whether all of them fit."""
    mesh = meshes.make_mesh((4, 2, 1))
    cut = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))

    def run(x: Any, lengths: Any) -> Any:
        plan = rows.choose(((12, 0.75),), lengths, 12)
        assert plan is not None
        packed, fits = plan
        return jax.grad(lambda x: jnp.sum(jnp.sin(packed.unpack(jnp.cos(packed.pack(x))))))(x), fits

    shapes = jax.ShapeDtypeStruct((32, 12, 16), float), jax.ShapeDtypeStruct((32,), int)
    with meshes.use(mesh):
        compiled = jax.jit(run, in_shardings=(cut, cut)).lower(*shapes).compile()
    assert collectives(compiled) == {"all-reduce": 1}


NAMES = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlm", "finetune", "spans")),
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            *("cocondenser", "cotmae", "retromae", "retromae_basic", "dupmae"),
            *("localized", "seq2seq", "listwise", "pair", "moco"),
        )
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_packed_is_padded(name: str) -> None:
    """Loss, metrics and gradients, dropout on."""
    with jax.enable_x64(True):
        padded, batch = objective(name, "float64"), batch_for(name, fill=0.7)
        room = step.shares_of(batch, 1, 1)
        assert all(share < 0.8 for _, share in room)
        packed = padded.fitted(room=room)
        variables = jax.tree.map(
            lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x,
            nn.unbox(jax.jit(padded.init)(jax.random.key(0))),
        )
        key = jax.random.key(1)

        @jax.jit
        def run(variables: Any) -> Any:
            def of(objective: Any) -> Any:
                ready = objective.prepare(batch, key)
                state = {name: x for name, x in variables.items() if name != "params"}
                loss = lambda p: objective.loss({**state, "params": p}, ready, key, True)  # noqa: E731
                return jax.value_and_grad(loss, has_aux=True)(variables["params"])

            return of(padded), of(packed)

        padded_step, packed_step = run(variables)
        assert_same(packed_step, padded_step, 1e-9)


@pytest.mark.slow
def test_packed_in_parts_on_eight_devices() -> None:
    """Over sharded parameters: each device packs its own examples."""
    batch = batch_for("mlm", fill=0.7)
    made = engine(objective("mlm", scan=True), (2, 2, 2), microbatch=8)
    room = step.room_of(made, batch)
    assert room
    packed, padded = (one_step(made, batch, room=each) for each in (room, ()))
    assert_same(packed, padded, 2e-5)


@pytest.mark.long
def test_lost_tokens_would_be_not_a_number() -> None:
    chosen, batch = objective("mlm"), batch_for("mlm", fill=0.7)
    small = chosen.fitted(room=((12, 0.25),))
    variables = jax.jit(small.init)(jax.random.key(0))
    ready = jax.jit(small.prepare)(batch, jax.random.key(1))
    assert np.isnan(jax.jit(small.loss, static_argnums=3)(variables, ready, None, False)[0])
