"""Without padding a step is the padded one: loss, gradients, masks and dropout of each example."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy_pretraining as toy
from jax.sharding import NamedSharding, PartitionSpec
from toy import collectives

from qac_jax.errors import UserError
from qac_jax.models import packing as rows
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.packing import plan
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cross_encoder import Localized
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.listwise import Listwise
from qac_jax.objectives.masking import Masking
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.pair import Pair
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.objectives.span_corruption import SpanCorruption
from qac_jax.training import mesh as meshes
from qac_jax.training import step
from qac_jax.training.step import Engine


LENGTHS = np.array([3, 5, 4, 4, 7, 2, 5, 6], np.int32)
SIZE, LENGTH, ROOM = len(LENGTHS), 8, 40
BERT = dataclasses.replace(toy.BERT, num_layers=1)
TINY_T5 = T5Config(
    vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2
)


TOWERS: dict[str, Any] = {
    "finetune": Finetune,
    "listwise": Listwise,
    "pair": functools.partial(Pair, alpha=0.5),
    "in_batch": InBatch,
    "spans": InBatch,
    "moco": functools.partial(MoCo, queue_size=2 * toy.SIZE, temperature=10.0),
}


def objective(name: str, dtype: str, **runtime: Any) -> Any:
    if name in toy.NAMES:
        return toy.objectives(dtype, BERT)[name]
    options = Runtime(dtype=dtype, dropout="hash", **runtime)
    if name == "mlm":
        return Mlm(BERT.build(options), Masking(0.3), toy.VOCABULARY)
    if name == "seq2seq":
        return Seq2Seq(T5(TINY_T5, options))
    if name in TOWERS:
        make = TOWERS[name]
        return make(DualEncoder(DualEncoderConfig(BERT, pooling="mean"), options))
    return Localized(CrossEncoder(BERT, options))


def batch_for(name: str) -> dict[str, np.ndarray]:
    """Texts that are at most seven tenths as long as their padded length."""
    rng = np.random.default_rng(0)
    texts: dict[str, dict[str, tuple[int, ...]]] = {
        "finetune": {"query": (6,), "passages": (3, 12)},
        "pair": {"query": (6,), "passages": (3, 12)},
        "listwise": {"query": (2, 6), "passages": (3, 12)},
        "in_batch": {"passage": (12,), "context": (6,)},
        "moco": {"passage": (12,), "context": (6,)},
        "spans": {"passage": (12,), "context": (6,), "spans": (3, 8)},
        "localized": {"pairs": (3, 12)},
        "seq2seq": {"inputs": (12,), "targets": (6,)},
        "cocondenser": {"passage": (12,), "context": (6,)},
        "cotmae": {"passage": (12,), "context": (6,)},
    }
    batch: dict[str, np.ndarray] = {}
    for feature, shape in texts.get(name, {"tokens": (12,)}).items():
        ids = rng.integers(5, 60, (toy.SIZE, *shape), dtype=np.int32)
        ids[..., 0] = toy.VOCABULARY.cls
        longest = 7 * shape[-1] // 10
        sizes = rng.integers(3, longest + 1, ids.shape[:-1], dtype=np.int32)
        batch[feature] = np.where(np.arange(shape[-1]) < sizes[..., None], ids, 0)
        batch[f"{feature}_length"] = sizes
    if name == "localized":
        batch["pairs_types"] = (np.arange(12) > 2).astype(np.int32) * np.ones_like(batch["pairs"])
    if name == "listwise":
        batch["scores"] = rng.random((toy.SIZE, 2, 3), dtype=np.float32)
    if name == "spans":  # every other query is the best of its text's spans
        batch["extract"] = np.arange(toy.SIZE, dtype=np.int32) % 2
    return batch


def in_rows(x: np.ndarray, parts: int) -> np.ndarray:
    """The tokens [parts, ROOM, …] of padded texts, one text after the other."""
    result = np.zeros((parts, ROOM, *x.shape[2:]), x.dtype)
    for part, texts in enumerate(np.split(np.arange(SIZE), parts)):
        tokens = np.concatenate([x[text, : LENGTHS[text]] for text in texts])
        result[part, : len(tokens)] = tokens
    return result


@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.slow)])
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
    mesh = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
    engine = Engine(
        objective("mlm", "float32"), optax.sgd(0.1), mesh, meshes.rules_named("default")
    )
    made: list[Any] = []

    def compiled(engine: Engine, spec: Any, room: Any = ()) -> int:
        made.append(room)
        return len(made)

    monkeypatch.setattr(step, "compiled", compiled)
    batch, spec = batch_for("mlm"), dict[str, Any]()
    full = {**batch, "tokens_length": np.full_like(batch["tokens_length"], 12)}
    steps = step.Programs(engine, spec, pack=True)
    assert [steps(each) for each in (batch, batch, full, batch)] == [1, 1, 2, 1]
    [(length, share)], padded = made
    assert length == 12 and share < 0.6 and padded == ()
    made.clear()
    assert step.Programs(engine, spec)(batch) == 1 and made == [()]


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
    with meshes.use(mesh, meshes.rules_named("default")):
        compiled = jax.jit(run, in_shardings=(cut, cut)).lower(*shapes).compile()
    assert collectives(compiled) == {"all-reduce": 1}


def test_an_objective_that_chooses_its_texts_is_refused() -> None:
    with pytest.raises(UserError, match="--pack cannot be used with the objective SpanCorruption"):
        rules: Any = meshes.rules_named("default")
        engine = Engine(SpanCorruption(T5(TINY_T5)), optax.sgd(0.1), meshes.make_mesh(), rules)
        step.Programs(engine, {}, pack=True)


NAMES = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlm", "finetune")),
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in (
            *("condenser", "cocondenser", "cotmae", "retromae", "retromae_basic", "dupmae"),
            *("localized", "seq2seq", "listwise", "pair", "in_batch", "moco", "spans"),
        )
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_packed_is_padded(name: str) -> None:
    """Loss, metrics and gradients, dropout on."""
    with jax.enable_x64(True):
        padded, batch = objective(name, "float64"), batch_for(name)
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
@pytest.mark.parametrize(
    ("name", "shape", "microbatch"),
    [("mlm", (2, 2, 2), 8), pytest.param("finetune", (2, 4, 1), 8, marks=pytest.mark.long)],
)
def test_packed_in_parts_on_eight_devices(
    name: str, shape: tuple[int, int, int], microbatch: int
) -> None:
    """Accumulated or in chunks, over sharded parameters: each device packs its own examples."""
    chosen = objective(name, "float32", scan=True)
    if not chosen.splittable:
        chosen = dataclasses.replace(chosen, chunk=microbatch)
    batch, mesh = batch_for(name), meshes.make_mesh(shape)
    spy = optax.trace(decay=0.0)  # its state is the gradient
    engine = Engine(chosen, spy, mesh, meshes.rules_named("default"), 3, microbatch)
    room = step.room_of(engine, batch)
    assert room
    start = jax.device_get(engine.create())

    def one_step(program: Any) -> Any:
        begin = jax.device_put(start, engine.shardings)
        state, metrics = program(begin, meshes.place(batch, mesh))
        return float(metrics["loss"]), jax.device_get(state.opt_state.trace)

    packed, padded = (one_step(engine.compile_step(batch, each)) for each in (room, ()))
    assert_same(packed, padded, 2e-5)


@pytest.mark.long
def test_lost_tokens_would_be_not_a_number() -> None:
    chosen, batch = objective("mlm", "float32"), batch_for("mlm")
    small = chosen.fitted(room=((12, 0.25),))
    variables = jax.jit(small.init)(jax.random.key(0))
    ready = jax.jit(small.prepare)(batch, jax.random.key(1))
    assert np.isnan(jax.jit(small.loss, static_argnums=3)(variables, ready, None, False)[0])


def assert_same(a: Any, b: Any, limit: float) -> None:
    flat_a, flat_b = jax.tree.leaves(a), jax.tree.leaves(b)
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(b[1]))
    assert largest > 1e-3, "the gradient vanished: nothing would be compared"
    for x, y in zip(flat_a, flat_b, strict=True):
        np.testing.assert_allclose(x, y, rtol=limit, atol=limit * largest)
