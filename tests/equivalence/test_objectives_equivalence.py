"""Every objective: microbatches add up, chunks are the whole batch, eight devices are one.

Dropout is on: keys of masking and dropout belong to examples.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
import toy_pretraining
from toy_objectives import BERT, SIZE, assert_same, batch_for, engine, objective, one_step, start

from qac_jax.objectives import pair, towers
from qac_jax.objectives.masking import Vocabulary
from qac_jax.objectives.objective import Objective
from qac_jax.training import mesh as meshes
from qac_jax.training.optimizers import Optimizer
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine
from qac_jax.training.train import train


SLOW, LONG = pytest.mark.slow, pytest.mark.long


def ready(name: str, dtype: str = "float32") -> tuple[Any, Any, Any]:
    """(objective, variables, prepared batch)."""
    made = objective(name, dtype)
    variables = nn.unbox(jax.jit(made.init)(jax.random.key(0)))
    variables = jax.tree.map(lambda x: x.astype(dtype), variables)
    return made, variables, jax.jit(made.prepare)(batch_for(name), jax.random.key(1))


def differentiated(objective: Any, variables: Any, batch: Any) -> Any:
    def loss(variables: Any) -> Any:
        return objective.loss(variables, batch, jax.random.key(2), True)

    return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(variables))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*("mlm", "seq2seq", "condenser", "cotmae", "retromae"), *("localized", "pointwise")]
)
def test_parts_of_a_batch_add_up(name: str) -> None:
    with jax.enable_x64(True):
        made, variables, batch = ready(name, "float64")
        assert made.splittable
        parts = [
            differentiated(made, variables, jax.tree.map(lambda x, i=i: x[i : i + 8], batch))
            for i in range(0, SIZE, 8)
        ]
        summed = jax.tree.map(lambda *x: sum(x), *parts)
        assert_same(summed, differentiated(made, variables, batch), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [("cocondenser", 0), ("finetune", 0), ("finetune", 4), ("pair", 4), ("adversarial", 0)],
)
def test_chunks_are_the_whole(name: str, rows: int) -> None:
    """The second pass replays the keys; rows: scoring some queries at a time, too."""
    with jax.enable_x64(True):
        made, variables, batch = ready(name, "float64")
        assert not made.splittable
        cut = dataclasses.replace(made, chunk=4, **{"rows": rows} if rows else {})
        whole = differentiated(made, variables, batch)
        assert_same(differentiated(cut, variables, batch), whole, 1e-9)


def with_parameters_of(objective: Any, dtype: str) -> Any:
    """The objective, but its parameters (float32 whatever is computed in) start in this type."""

    class Cast(type(objective)):  # type: ignore[misc]
        def init(self, key: jax.Array) -> Any:
            def cast(x: jax.Array) -> jax.Array:
                return x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x

            return jax.tree.map(cast, super().init(key))

    fields = [field.name for field in dataclasses.fields(objective) if field.init]
    return Cast(**{name: getattr(objective, name) for name in fields})


def step_in_parts(
    name: str, dtype: str, shape: tuple[int, int, int], parts: int, scan: bool, kept: int = 0
) -> Any:
    """A real step, accumulated over microbatches or in chunks."""
    with jax.enable_x64(dtype == "float64"):
        config = toy_pretraining.BERT if name in toy_pretraining.NAMES else BERT
        made = objective(name, dtype, config, **{"scan": True} if scan else {})
        made = with_parameters_of(made, dtype)
        if parts and not made.splittable:
            made = dataclasses.replace(made, chunk=parts)
        return one_step(engine(made, shape, microbatch=parts), batch_for(name), kept=kept)


@functools.cache
def direct(name: str, dtype: str, scan: bool) -> Any:
    return step_in_parts(name, dtype, (1, 1, 1), 0, scan)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "parts", "scan"),
    [
        ("mlm", "float32", (2, 2, 2), 8, False),
        pytest.param("mlm", "float32", (8, 1, 1), 0, True, marks=SLOW),
        pytest.param("finetune", "float32", (8, 1, 1), 8, False, marks=SLOW),
        pytest.param("finetune", "float32", (2, 2, 2), 0, False, marks=SLOW),
        pytest.param("pair", "float32", (8, 1, 1), 0, False, marks=SLOW),
        pytest.param("official", "float32", (2, 2, 2), 8, False, marks=SLOW),
        pytest.param("adversarial", "float32", (4, 2, 1), 8, False, marks=SLOW),
        pytest.param("localized", "float32", (8, 1, 1), 0, False, marks=SLOW),
        pytest.param("in_batch", "float32", (2, 2, 1), 8, True, marks=SLOW),
        pytest.param("moco", "float32", (2, 2, 2), 4, True, marks=SLOW),
        pytest.param("cocondenser", "float32", (2, 2, 2), 8, False, marks=SLOW),
        pytest.param("cocondenser", "float64", (8, 1, 1), 8, False, marks=SLOW),
        pytest.param("cotmae", "float64", (8, 1, 1), 8, False, marks=SLOW),
        pytest.param("retromae", "float64", (8, 1, 1), 8, False, marks=SLOW),
    ],
)
def test_in_parts_and_on_eight_devices_it_is_the_direct_step(
    name: str, dtype: str, shape: tuple[int, int, int], parts: int, scan: bool
) -> None:
    limit = {"float32": 2e-5, "float64": 1e-9}[dtype]
    found = step_in_parts(name, dtype, shape, parts, scan)
    assert_same(found, direct(name, dtype, scan), limit)


@pytest.mark.long
def test_chunks_that_are_encoded_once_change_nothing() -> None:
    found = step_in_parts("cocondenser", "float64", (2, 1, 1), 4, False, kept=3)
    assert_same(found, direct("cocondenser", "float64", False), 1e-9)


# With vectors of the whole batch and state, and beside a tensor axis.
FILLED = [
    pytest.param("moco", (8, 1, 1), marks=SLOW),
    pytest.param("finetune", (4, 1, 2), marks=SLOW),
    *(
        pytest.param(name, (8, 1, 1), marks=LONG)
        for name in (
            *("mlm", "condenser", "cocondenser", "cotmae", "retromae", "dupmae", "pair"),
            *("in_batch", "adversarial", "localized", "listwise", "seq2seq"),
        )
    ),
]


@pytest.mark.parametrize(("name", "shape"), FILLED)
def test_a_batch_that_devices_do_not_share_equally_is_filled_up(name: str, shape: Any) -> None:
    """11 examples on eight devices are 16 rows."""
    groups = {"mlm_group": 2} if name == "cocondenser" else {}
    groups |= {"queue_size": 88} if name == "moco" else {}
    made = dataclasses.replace(objective(name), **groups)
    found, expected = (
        one_step(engine(made, shape), batch_for(name, 11)) for shape in (shape, (1, 1, 1))
    )
    assert_same(found, expected, 2e-5, figures=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cotmae", "finetune"])
def test_figures_of_validation_of_a_filled_batch(name: str) -> None:
    figures, batch = [], batch_for(name, 11)
    for devices in (1, 8):
        made = engine(objective(name), (devices, 1, 1))
        measure = made.compile_measure(batch)
        found = measure(start(made).variables, meshes.place(batch, made.mesh))
        figures.append({n: float(x) for n, x in found.items()})
    assert figures[1] == pytest.approx(figures[0], rel=1e-5, abs=1e-7)


def test_the_loss_is_the_mean_over_all_masked_tokens() -> None:
    made, variables, batch = ready("mlm")
    labels, text = batch_for("mlm")["tokens"], batch["text"]

    @jax.jit
    def run(variables: Any) -> Any:
        hidden = made.module.apply(variables, text.ids, text.lengths).last
        logits = made.module.apply(variables, hidden, method="mlm_logits")
        return made.loss(variables, batch, jax.random.key(2), False), logits

    (loss, aux), logits = run(variables)
    rows, columns = np.nonzero(np.asarray(text.weights) > 0)
    places = np.asarray(text.positions)[rows, columns]
    log_p = np.asarray(jax.nn.log_softmax(logits))[rows, places]
    assert len(rows) > SIZE
    expected = -log_p[np.arange(len(rows)), labels[rows, places]].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    hits = (log_p.argmax(-1) == labels[rows, places]).mean()
    np.testing.assert_allclose(aux["masked_accuracy"], hits, rtol=1e-5)


def test_a_batch_without_any_label_has_no_loss_and_no_gradient() -> None:
    made, variables, _ = ready("mlm")
    words: Vocabulary = toy_pretraining.VOCABULARY
    batch = {"tokens": np.full((2, 12), words.unk, np.int32), "tokens_length": np.full(2, 12)}

    @jax.jit
    @jax.value_and_grad
    def run(variables: Any) -> Any:
        prepared = made.prepare(batch, jax.random.key(1))
        return made.loss(variables, prepared, jax.random.key(2), False)[0]

    loss, gradient = run(variables)
    assert loss == 0
    assert all(np.isfinite(x).all() and not x.any() for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", ["mlm", pytest.param("seq2seq", marks=SLOW)])
def test_a_few_steps_on_one_batch_learn_it(name: str) -> None:
    made = objective(name)
    mesh = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
    optimizer = Optimizer(learning_rate=0.02, schedule_name="constant")
    params = jax.eval_shape(made.init, jax.random.key(0))["params"]
    learner = Engine(made, optimizer.build(40, params), mesh)
    state, batch = learner.create(), batch_for(name)
    compiled, placed = learner.compile_step(batch), meshes.place(batch, mesh)
    losses = []
    for _ in range(40):
        state, metrics = compiled(state, placed)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.85 * losses[0], losses


def test_pair_is_the_weighted_sum_of_two_losses_with_the_temperature() -> None:
    made, variables, batch = ready("pair")
    made = dataclasses.replace(made, temperature=0.5)

    @jax.jit
    def run(variables: Any) -> Any:
        queries, passages = towers.vectors(made.model, variables, batch, None, 0)
        given = {"numbers": batch.get("numbers"), "temperature": 0.5}
        by_hand = [
            loss(queries, passages, made.denominator, **given).loss.mean()
            for loss in (pair.query_centric, pair.passage_centric)
        ]
        alone = dataclasses.replace(made, alpha=0.0)
        return by_hand, *(
            each.loss(variables, batch, jax.random.key(2), False) for each in (made, alone)
        )

    (query, passage), (loss, aux), (query_loss, query_aux) = run(variables)
    assert set(query_aux) == {"query_loss", "accuracy"}
    found = [aux["query_loss"], aux["passage_loss"], query_loss, loss]
    np.testing.assert_allclose(found, [query, passage, query, 0.7 * query + 0.3 * passage], 1e-6)


@pytest.mark.parametrize("name", ["mlm", "seq2seq", "official", "pointwise", "localized"])
def test_the_objectives_keep_the_contract(name: str) -> None:
    made = objective(name)
    assert isinstance(made, Objective)
    exported = made.export(jax.eval_shape(made.init, jax.random.key(0)))[1]
    assert "mlm_head" not in exported
    if name in ("mlm", "seq2seq"):
        Optimizer(frozen=("layers/0/",)).build(10, nn.unbox(exported))


class Stopped(Exception):
    """What stands for a crash."""


class Loader:
    """MoCo's batches in memory; fails when asked for one too many."""

    def __init__(self, limit: int = -1):
        self.spec = {name: (x.shape, x.dtype) for name, x in batch_for("moco").items()}
        self.examples_per_epoch = 10 * SIZE
        self.identity = "memory"
        self._limit, self._next = limit, 0

    def __next__(self) -> dict[str, np.ndarray]:
        if self._next == self._limit:
            raise Stopped
        self._next += 1
        return batch_for("moco", seed=self._next)

    def __iter__(self) -> Loader:
        return self

    def state(self) -> dict[str, int]:
        return {"next": self._next}

    def restore(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def test_mocos_state_lies_as_its_parameters_do() -> None:
    places = engine(objective("moco"), (2, 2, 2)).shardings.variables
    assert places["queue"]["keys"].spec[0] == ("data", "fsdp")
    assert jax.tree.map(str, places["momentum"]) == jax.tree.map(str, places["params"])


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_same_queue_bit_for_bit(tmp_path: Path) -> None:
    mesh = meshes.make_mesh((1, 1, 1), jax.devices()[:1])
    made = Engine(objective("moco"), optax.sgd(0.1), mesh, seed=3)

    def run(folder: str, data: Any) -> Any:
        monitoring = Monitoring(log_every=0, save_every=2)
        state = train(made, data, 5, monitoring, tmp_path / folder, identity={})
        return jax.device_get(state.variables)

    whole = run("whole", Loader())
    with pytest.raises(Stopped):
        run("cut", Loader(limit=3))
    resumed = run("cut", Loader())
    assert sorted(resumed) == ["momentum", "params", "queue"]
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    # Five batches of 16 in a queue of 64: once around, and one more.
    assert int(resumed["queue"]["pointer"]) == 16
    norms = np.linalg.norm(resumed["queue"]["keys"], axis=1)
    assert not np.isclose(norms, 1).any(), "the unit vectors of the beginning have all left"
