"""Training: state, loss scaling, meshes, optimisers, probes, trackers, and what is kept."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
import toy_examples
from etils import epath
from jax.sharding import PartitionSpec

from qac_jax import cli, hardware
from qac_jax.errors import UserError
from qac_jax.hardware import Device
from qac_jax.hub import weights
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.mlm import Mlm
from qac_jax.objectives.objective import Context
from qac_jax.training import mesh as meshes
from qac_jax.training import metrics, optimizers, step, train
from qac_jax.training.checkpoints import Checkpoints, _ThatStep, averaged, plain
from qac_jax.training.optimizers import OPTIMIZERS, Optimizer
from qac_jax.training.step import LARGEST, LEAST, LOSS_SCALE, Engine, Scaling, overflows


TINY = BertConfig(
    vocab_size=32, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16
)


def engine(objective: Any, *, data: int = 1, **options: Any) -> Engine:
    mesh = meshes.make_mesh((data, 1, 1), jax.devices()[:data])
    return Engine(objective, optax.adam(1e-2), mesh, **options)


# The state.


def test_the_objective_state_advances_once_a_step() -> None:
    run = engine(toy.ToyContrastive(chunk=4, stateful=True))
    state, program = run.create(), run.compile_step(toy.batch(16))
    for _ in range(2):
        state, found = program(state, meshes.place(toy.batch(16), run.mesh))
    assert int(state.variables["queue"]["seen"]) == 32 and int(state.step) == 2
    assert set(found) == {"loss", "top1", "grad_norm"}


def test_given_parameters_take_the_place_of_new_ones() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithMomentum(toy.ToyContrastive):
        def init(self, key: jax.Array) -> Any:
            variables = super().init(key)
            return {**variables, **self.initial_state(variables["params"])}

        def initial_state(self, params: Any) -> Any:
            return {"momentum": jax.tree.map(jnp.copy, params)}

    run = engine(WithMomentum())
    state, fresh = run.create({"table": np.full((32, 16), 0.5, np.float32)}), run.create()
    np.testing.assert_array_equal(state.params["table"], 0.5)
    np.testing.assert_array_equal(state.params["up"], fresh.params["up"])
    np.testing.assert_array_equal(state.variables["momentum"]["table"], 0.5)


def test_what_a_run_starts_from_decides_its_shape() -> None:
    objective = Mlm(Bert(BertConfig()))
    for module, given in (
        (Bert(TINY), {"x": 1}),
        (DualEncoder(DualEncoderConfig(TINY)), {"encoder": {"backbone": {"x": 1}}}),
    ):
        loaded, params = objective.start_from(module, given)
        assert loaded.model.config == TINY and params == {"x": 1}
    with pytest.raises(UserError, match="Mlm trains a Bert, .* those of a T5"):
        objective.start_from(T5(T5Config()), {})
    with pytest.raises(UserError, match="those of a DualEncoder"):  # which of the two towers?
        untied = DualEncoder(DualEncoderConfig(TINY, tied=False))
        objective.start_from(untied, {"encoder": {"backbone": {}}})


def test_parameters_are_matched_by_name_and_shape() -> None:
    target = {"a": {"b": np.zeros(3), "c": np.zeros(2)}}
    kept, unused, fresh = train.matching({"a": {"b": np.ones(3)}, "z": np.ones(1)}, target)
    assert list(kept["a"]) == ["b"] and unused == ["z"] and fresh == ["a/c"]
    with pytest.raises(UserError, match=r"a/b to start from has the shape \(4,\), .* \(3,\)"):
        train.matching({"a": {"b": np.ones(4)}}, target)


def test_what_a_run_tells_its_objective() -> None:
    bound = Mlm(Bert(TINY)).bind(Context(precision="bfloat16", chunk=4))
    assert bound.model.runtime.dtype == "bfloat16" and bound.chunk == 0
    assert toy.ToyContrastive().bind(Context(chunk=4)).chunk == 4  # which does not split


def test_memory_decides_how_many_chunks_are_kept_and_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, run = toy.batch(64), engine(toy.ToyContrastive(chunk=16))
    of_chunk = step.activation_bytes(toy.ToyContrastive(), batch) / 4
    state = 16 * step.count_parameters(run.abstract.params)
    for chunks, kept in ((0, 0), (1.1, 0), (3.9, 2), (99, 4)):
        assert step.chunks_kept(run, batch, (), state + chunks * of_chunk) == kept
    monkeypatch.setattr(hardware, "find", lambda kind: Device("Toy", "Toy", 1e12, 1e4))
    with pytest.raises(UserError, match="GiB of memory on each of 1 .* smaller --microbatch"):
        step.compiled(run, batch)


# float16: the loss is scaled.


def test_the_scale_doubles_after_good_steps_and_halves_at_once() -> None:
    rule = Scaling(8.0, period=2)
    scale, seen = rule.start(), []
    for finite in (True, True, True, False, True, False, False, False, False, False):
        scale = rule.after(scale, jnp.asarray(finite))
        seen.append((float(scale["value"]), int(scale["good"])))
    assert seen[:6] == [(8, 1), (16, 0), (16, 1), (8, 0), (8, 1), (4, 0)]
    assert seen[-1] == (LEAST, 0)
    full = {"value": jnp.float32(LARGEST), "good": jnp.int32(1)}
    assert float(rule.after(full, jnp.asarray(True))["value"]) == LARGEST
    nan, infinite = float("nan"), float("inf")
    cases = [(1.0, infinite, 4.0), (1.0, nan, LEAST), (nan, nan, 4.0), (1.0, 1.0, 4.0)]
    assert [bool(overflows(*case)) for case in cases] == [True, False, False, False]
    # Checkpoints of other precisions have no scale.
    assert "scale" not in plain(engine(toy.ToyMlm()).abstract)
    assert "scale" in plain(engine(toy.HalfMlm()).abstract)


def test_a_step_that_overflows_changes_nothing_but_the_scale() -> None:
    run = engine(toy.HalfMlm(), scaling=Scaling(2.0**24, period=3))
    state, program = run.create(), run.compile_step(toy.batch(16))
    scales, moved = [], 0
    for number in range(1, 16):
        before = jax.device_get(state)
        state, found = program(state, meshes.place(toy.batch(16), run.mesh))
        after = jax.device_get(state)
        scales.append(float(found[LOSS_SCALE]))
        assert int(after.step) == number and np.isfinite(found["loss"])
        if np.isfinite(found["grad_norm"]):
            moved += 1
            assert np.any(after.params["table"] != before.params["table"])
            continue
        for part in ("variables", "opt_state", "skipped"):
            jax.tree.map(np.testing.assert_array_equal, getattr(after, part), getattr(before, part))
        assert after.scale["value"] == before.scale["value"] / 2 and after.scale["good"] == 0
    assert scales[0] == 2.0**24 and scales[1] == 2.0**23 and moved >= 5
    assert any(b == 2 * a for a, b in zip(scales, scales[1:], strict=False))  # grown again
    assert int(state.skipped) == 0


def test_a_loss_that_is_not_finite_counts_as_skipped() -> None:
    run = engine(dataclasses.replace(toy.HalfMlm(), explode_at=2), scaling=Scaling(1024.0))
    state, program = run.create(), run.compile_step(toy.batch(16))
    before = jax.device_get(state.params)
    state, _ = program(state, meshes.place(toy.batch(16), run.mesh))
    assert int(state.skipped) == 1 and float(state.scale["value"]) == 512.0
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), before)


# Meshes.


def test_rules_cut_parameters_and_say_what_does_not_fit() -> None:
    mesh = meshes.make_mesh((2, 2, 2))

    def spec(rows: int, mesh: Any = mesh) -> Any:
        value: Any = jax.ShapeDtypeStruct((rows, 16), jnp.float32)
        boxed = {"params": {"w": nn.LogicallyPartitioned(value, ("vocab", "embed"))}}
        return meshes.shardings(boxed, mesh)["params"]["w"].spec

    assert spec(32) == PartitionSpec("tensor", "fsdp")
    spec(31, meshes.make_mesh((8, 1, 1)))
    with pytest.raises(UserError, match="w: its logical axis 'vocab' of 31 .*'tensor' of 2; pad"):
        spec(31)


def test_state_is_born_sharded_and_the_optimiser_mirrors_parameters() -> None:
    run = Engine(toy.ToyMlm(), optax.adamw(1e-3), meshes.make_mesh((2, 2, 2)))
    state, table = run.create(), PartitionSpec("tensor", "fsdp")
    moments = state.opt_state[0]
    for leaf in (state.params, moments.mu, moments.nu):
        assert leaf["table"].sharding.spec == table
    assert moments.count.sharding.spec == PartitionSpec()


def test_any_batch_has_its_devices() -> None:
    assert meshes.mesh_sizes((-1, 2, 1), 8) == (4, 2, 1)
    for shape, batch, microbatch, fills, used in (
        ((-1, 1, 1), 64, 0, False, 8),
        ((-1, 1, 1), 75, 0, False, 5),  # BEIR's script for MS MARCO
        ((-1, 2, 1), 75, 0, False, 8),  # parameters over two devices: refused by check_batch
        ((-1, 1, 1), 75, 0, True, 8),
    ):
        assert meshes.shared_by(shape, 8, batch, microbatch, fills) == used
    with pytest.raises(UserError, match="microbatch=4 is not divisible by the 8 devices"):
        engine(toy.ToyMlm(), data=8, microbatch=4).check(16)


def test_copies_of_the_first_rows_fill_a_batch_up(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = meshes.mesh_for((-1, 1, 1), 13, fills=True)
    placed = meshes.place({"x": np.arange(13)}, mesh)["x"]
    assert mesh.size == 8 and placed.tolist() == [*range(13), 0, 1, 2]
    with pytest.raises(UserError, match="batch_size=5 is not divisible"):
        meshes.check_batch(5, mesh, fills=True)
    assert meshes.largest_batch(mesh, 13, fills=True) == 13
    assert meshes.mesh_for((-1, 1, 1), 75).size == 5
    assert "shared by 5 of 8 devices" in capsys.readouterr().err


# Optimisers.


def loop_tree(seed: int) -> dict[str, Any]:
    """Named as the models name theirs: three numbered layers, a head, an embedding."""
    keys = iter(jax.random.split(jax.random.key(seed), 20))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape)

    def layer() -> dict[str, Any]:
        return {"query": {"kernel": normal(4, 3), "bias": normal(3)}, "norm": {"scale": normal(3)}}

    return {
        "embeddings": {"word": {"embedding": normal(5, 4)}},
        "layers": {str(i): layer() for i in range(3)},
        "mlm_head": {"bias": normal(5)},
    }


def moved(optimizer: Optimizer, params: Any, *grads: Any) -> Any:
    tx = optimizer.build(100, params)
    state = tx.init(params)
    update = jax.jit(tx.update)
    for gradient in grads:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), one, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_layers_move_as_numbered_ones(name: str) -> None:
    optimizer = Optimizer(name, 0.1, schedule_name="constant", weight_decay=0.1, clip_norm=1.0)
    params, grads = loop_tree(0), [loop_tree(1), loop_tree(2)]
    expected = moved(optimizer, params, *grads)
    found = moved(optimizer, weights.scanned(params), *map(weights.scanned, grads))
    assert_equal(weights.looped(found), expected)


def test_biases_and_norms_are_not_decayed() -> None:
    params = loop_tree(0)
    optimizer = Optimizer("adamw", 0.5, weight_decay=0.1, schedule_name="constant")
    found = moved(optimizer, params, jax.tree.map(jnp.zeros_like, params))

    def check(path: Any, before: jax.Array, after: jax.Array) -> None:
        factor = 1.0 if path[-1].key in ("bias", "scale") else 0.95
        np.testing.assert_allclose(after, before * factor, rtol=1e-6, err_msg=str(path))

    jax.tree_util.tree_map_with_path(check, params, found)


def test_frozen_parameters_stay_and_do_not_count_in_the_clipping() -> None:
    # eps: so that the size of the gradient matters.
    settings: Any = {"eps": 1.0, "clip_norm": 0.5, "schedule_name": "constant"}
    before, change = loop_tree(0), loop_tree(1)
    part, part_gradient = (
        {"2": tree["layers"]["2"], "mlm_head": tree["mlm_head"]} for tree in (before, change)
    )
    expected = moved(Optimizer("adamw", 0.1, **settings), part, part_gradient)
    frozen = Optimizer("adamw", 0.1, frozen=("^embeddings", "layers/[01]/"), **settings)
    found = moved(frozen, before, change)
    layers = found["layers"]
    assert_equal(found["embeddings"], before["embeddings"])
    assert_equal([layers["0"], layers["1"]], [before["layers"]["0"], before["layers"]["1"]])
    assert_equal({"2": layers["2"], "mlm_head": found["mlm_head"]}, expected)


def test_lamb_adapts_what_is_not_decayed_only_when_asked() -> None:
    for adapted, by in ((False, 0.1), (True, 0.3)):
        optimizer = Optimizer("lamb", 0.1, adapt_excluded=adapted, schedule_name="constant")
        found = moved(optimizer, {"bias": jnp.full((4,), 3.0)}, {"bias": jnp.ones((4,))})
        np.testing.assert_allclose(found["bias"], 3.0 - by, rtol=1e-5)


def test_settings_that_make_no_sense_are_refused() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": "adam"}, "did you mean 'adamw'"),
        ({"frozen": ("embeddings", "layers/7")}, "'layers/7' matches no parameter"),
        ({"frozen": ("",)}, "nothing would be trained"),
    )
    for settings, message in cases:
        with pytest.raises(UserError, match=message):
            Optimizer(**settings).build(10, loop_tree(0))


def rates(name: str, total: int, warmup: int, **options: float) -> np.ndarray:
    rate = optimizers.schedule(name, 2.0, total, warmup, **options)
    return np.asarray(jax.vmap(rate)(jnp.arange(total + 3)))


def test_learning_rates_by_hand() -> None:
    found = rates("cosine", 10, 2)[[0, 1, 2, 6, 10, 12]]
    np.testing.assert_allclose(found, [0, 1, 2, 1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(rates("constant", 4, 2), [0, 1, 2, 2, 2, 2, 2])
    assert all(rates(name, 5, 0)[0] == 2.0 for name in optimizers.SCHEDULES)
    # A ratio is rounded as each reference rounds it.
    assert optimizers.warmup_steps("linear", 25, 0.1, 0) == 3
    assert optimizers.warmup_steps("paddle_jump", 25, 0.1, 0) == 2
    assert optimizers.warmup_steps("linear", 25, 0.1, 7) == 7
    rate = Optimizer(learning_rate=2.0, warmup_ratio=0.3).schedule(6)
    np.testing.assert_allclose([rate(t) for t in range(7)], [0, 1, 2, 1.5, 1, 0.5, 0], atol=1e-7)
    with pytest.raises(UserError, match="warm-up of 9 steps is longer than the 4 steps"):
        optimizers.schedule("linear", 1.0, 4, 9)


# What is measured, and where it goes.


def test_a_run_that_continues_replaces_what_it_does_again(tmp_path: Path) -> None:
    for begins, number in ((0, 5), (2, 3)):
        journal = metrics.Journal(epath.Path(tmp_path), begins, tensorboard=True, name="run")
        journal.log(number, {"loss": 2.5})
        (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert json.loads(line) == {"step": number, "loss": 2.5}
        journal.close()


@pytest.mark.slow
def test_a_training_shows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Log, metrics, TensorBoard, report and trace; the best step is the result."""
    words = toy_examples.tokenized(tmp_path, "mlm")
    out = tmp_path / "run" / "model"
    gin = Path(__file__).parents[1] / "toy_mlm.gin"
    command = ["pretrain", "--gin_file", gin, "--examples", words.path, "--out", out]
    command += ["--validation", words.path, "--validate_every", 1, "--best", "loss"]
    command += ["--tensorboard", "--profile", "0:1", "--steps", 2, "--log_every", 1]
    assert cli.main([str(word) for word in command]) == 0
    said = capsys.readouterr().err
    assert "step 1: validation/loss" in said and f"the trace is in {out / 'profile'}" in said
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "validation/loss" in row]) == 2
    (file,) = (out / "tensorboard" / "model").iterdir()
    assert b"validation/loss" in file.read_bytes()
    assert list((out / "profile").rglob("*.xplane.pb"))
    assert cli.main(["report", "--folder", str(out.parent), "--out", str(tmp_path / "page")]) == 0
    assert "loss by step" in (tmp_path / "page" / "report.html").read_text()


# What is kept.


@pytest.mark.parametrize(
    ("metric", "best"),
    [("loss", 2), ("contrastive", 2), ("distillation", 2), ("likelihood", 2), ("accuracy", 4)],
)
def test_the_best_step_has_the_smallest_loss_by_whatever_name(metric: str, best: int) -> None:
    """Objectives report their losses as contrastive, distillation or likelihood, too."""
    saved: list[int] = []
    any_: Any = None
    checkpoints = object.__new__(Checkpoints)
    checkpoints._metric, checkpoints._value, checkpoints._best = metric, float("nan"), _ThatStep()
    checkpoints.save = lambda step, state, data: saved.append(step)  # type: ignore[method-assign]
    for number, value in ((1, 3.0), (2, 2.0), (3, 2.5), (4, 4.0)):
        checkpoints.measured(number, any_, any_, {f"validation/{metric}": value})
    assert saved[-1] == best


FILES = {"meta/metadata": "{}", "state/_METADATA": "{}", "state/d/0": "numbers"}


def test_a_checkpoint_that_lost_its_bytes_is_left_out(tmp_path: Path) -> None:
    """After a loss of power the training refused to continue until it was removed."""
    for name, text in itertools.product(FILES, (None, "", '{"cut')):
        folder = tmp_path / f"{name} {text}".replace("/", "-")
        for number, place in itertools.product(("2", "4"), FILES):
            (folder / number / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / number / place).write_text(FILES[place])
        file = folder / "4" / name
        file.unlink() if text is None else file.write_text(text)
        checkpoints = object.__new__(Checkpoints)  # Orbax itself needs whole ones
        checkpoints.folder = epath.Path(folder)
        checkpoints._remove_halves()
        # Of the numbers themselves Orbax knows what they should be.
        kept = {"2", "4"} if name == "state/d/0" and text != "" else {"2"}
        assert {path.name for path in folder.iterdir()} == kept, (name, text)


def test_weights_are_averaged() -> None:
    start, trained = {"w": np.zeros(2, np.float32)}, {"w": np.full(2, 4, np.float32)}
    mean = averaged([start, trained], (0.75, 0.25))["w"]
    assert mean.dtype == np.float32 and mean.tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="different parameters"):
        averaged([start, {"w": np.zeros(3)}], (1, 1))


def test_programs_are_kept_also_where_an_earlier_stage_compiled_without(tmp_path: Path) -> None:
    code = (
        "import jax, jax.numpy as jnp; from qac_jax import hardware; f = jax.jit(lambda x: x @ x)\n"
        "f(jnp.ones((3, 3))); hardware.keep_programs(); f(jnp.ones((9, 9)))"
    )
    changed = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    del changed["JAX_COMPILATION_CACHE_DIR"]
    subprocess.run([sys.executable, "-c", code], env=changed, check=True)
    kept = {path.parent.name for path in tmp_path.rglob("jit__lambda*-cache")}
    assert kept == {hardware.machine("cpu")}
