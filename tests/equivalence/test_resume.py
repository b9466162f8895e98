"""A run that was stopped and taken up again ends with the parameters of one that was not."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import toy

from qac_jax.errors import UserError
from qac_jax.training import mesh as meshes
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine, Scaling
from qac_jax.training.train import train


IDENTITY = {"model": {"net": "toy", "width": 16}, "data": "memory", "settings": {"seed": 3}}
PLAN = (10, Monitoring(log_every=4, save_every=3, keep=2))


MemoryLoader: Any = toy.MemoryLoader


class Stopped(Exception):
    """What stands for a crash of the machine in this process."""


class Breaking(toy.MemoryLoader):
    """Fails when asked for a batch too many."""

    def __init__(self, limit: int):
        super().__init__(16)
        self._limit = limit

    def __next__(self) -> dict[str, np.ndarray]:
        if self._next == self._limit:
            raise Stopped
        return super().__next__()


def engine(shape: tuple[int, int, int] = (2, 1, 1), **options: Any) -> Engine:
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    objective = options.pop("objective", toy.ToyMlm(toy.Net(dropout=0.2)))
    return Engine(objective, optax.adamw(3e-3), mesh, seed=3, **options)


def run(folder: Path, data: Any = None, **options: Any) -> Any:
    total, monitoring = options.pop("plan", PLAN)
    identity = options.pop("identity", IDENTITY)
    arguments = {n: options.pop(n) for n in ("validation", "schedule") if n in options}
    state = train(
        engine(**options),
        data or MemoryLoader(16),
        total,
        monitoring,
        folder,
        identity=identity,
        **arguments,
    )
    return jax.device_get(state.params)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_bits(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_resumed_is_uninterrupted_bit_for_bit(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, Breaking(8))
    assert_bits(run(tmp_path), whole[1])
    keys = ("step", "loss", "accuracy", "grad_norm")
    resumed, straight = (
        [{k: line[k] for k in keys} for line in lines(f)] for f in (tmp_path, whole[0])
    )
    # The window of step 8 holds what came after the restart at 6.
    assert [line["step"] for line in resumed] == [line["step"] for line in straight] == [4, 8, 10]
    assert resumed[0] == straight[0] and resumed[2] == straight[2]


@pytest.mark.slow
def test_resumed_in_float16_with_the_scale_of_the_loss(tmp_path: Path) -> None:
    options = {
        "objective": toy.HalfMlm(toy.HalfNet(dropout=0.2)),
        "scaling": Scaling(2.0**24, period=3),
        "plan": (14, Monitoring(log_every=1, save_every=3)),
    }
    straight = run(tmp_path / "a", **options)
    with pytest.raises(Stopped):
        run(tmp_path / "b", Breaking(11), **options)
    assert_bits(run(tmp_path / "b", **options), straight)
    logged = lines(tmp_path / "a")
    scales = [[line["loss_scale"] for line in lines(tmp_path / name)] for name in "ab"]
    assert scales[0] == scales[1] and len(set(scales[0])) > 1
    assert sum(line.get("overflows", 0) for line in logged) > 1
    assert not any("skipped" in line for line in logged)


def test_a_finished_run_is_not_trained_again(whole: Any) -> None:
    assert_bits(run(whole[0], Breaking(0)), whole[1])


def test_resumes_on_another_mesh_with_equal_loss(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, Breaking(7))
    run(tmp_path, shape=(1, 4, 2))
    a, b = lines(tmp_path)[-1], lines(whole[0])[-1]
    assert a["step"] == b["step"] == 10
    assert abs(a["loss"] - b["loss"]) <= 1e-5 * abs(b["loss"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"net": "toy", "width": 32}}, "another model .*width is 16 there and 32 here"),
        ({"data": "other"}, 'another data .*"memory" there and "other" here'),
    ],
)
def test_refuses_the_checkpoint_of_another_run(whole: Any, change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(whole[0], identity={**IDENTITY, **change})


@pytest.mark.slow
def test_the_best_step_is_the_result_also_after_a_restart(tmp_path: Path) -> None:
    plan = (9, Monitoring(save_every=3, validate_every=2, best="loss", log_every=3))

    def validation() -> Any:
        return toy.MemoryLoader(16, seed=9, examples=32)

    straight = run(tmp_path / "a", plan=plan, validation=validation())
    with pytest.raises(Stopped):
        run(tmp_path / "b", Breaking(8), plan=plan, validation=validation())
    assert_bits(run(tmp_path / "b", plan=plan, validation=validation()), straight)
    measured = {
        int(line["step"]): line["validation/loss"]
        for line in lines(tmp_path / "b")
        if "validation/loss" in line
    }
    assert list(measured) == [2, 4, 6, 8, 9]
    best = min(measured, key=lambda step: measured[step])
    short = (best, Monitoring(save_every=3))
    # The schedule is constant, so a run of just so many steps ends where the best step was.
    assert_bits(run(tmp_path / "c", plan=short), straight)


def test_an_unknown_measure_names_the_nearest(tmp_path: Path) -> None:
    plan = (1, Monitoring(best="accuracies"))
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        run(tmp_path, plan=plan, validation=toy.MemoryLoader(16))


def test_keeps_the_last_ones(tmp_path: Path) -> None:
    plan = (10, Monitoring(save_every=2, keep=2))
    run(tmp_path, plan=plan)
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert kept == [8, 10]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    explosive = toy.ToyMlm(explode_at=2)  # a token that is in every batch
    with pytest.raises(UserError, match="not finite at step 1, between steps 1 and 3"):
        run(tmp_path, objective=explosive)
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_steps_that_are_not_finite_may_be_skipped(tmp_path: Path) -> None:
    class OneBad(toy.MemoryLoader):
        def __next__(self) -> dict[str, np.ndarray]:
            batch = super().__next__()
            ids = np.where(batch["tokens"] == 31, 30, batch["tokens"])
            if self._next == 2:
                ids[0, 0] = 31
            return {**batch, "tokens": ids}

    bad = toy.ToyMlm(explode_at=31)
    params = run(tmp_path / "a", OneBad(16), objective=bad, max_skips=1)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    assert lines(tmp_path / "a")[-1]["skipped"] == 1
    with pytest.raises(UserError, match="not finite at step 2"):
        run(tmp_path / "b", OneBad(16), objective=bad)


def test_log_says_speed_and_schedule(whole: Any, tmp_path: Path, capsys: Any) -> None:
    plan = (4, Monitoring(log_every=2, profile="1:3"))
    run(tmp_path, plan=plan, schedule=optax.linear_schedule(1e-2, 0.0, 4))
    said = capsys.readouterr().err
    assert "memory per device: peak" in said
    assert "step 4/4 (100%)" in said and "examples/s" in said and "ETA 0:00" in said
    assert "profiled steps 1 to 3: the trace is in" in said
    assert list((tmp_path / "profile").rglob("*.trace.json.gz"))
    first = lines(tmp_path)[0]
    assert first["learning_rate"] == pytest.approx(7.5e-3)
    assert first["tokens_per_second"] > first["examples_per_second"] > 0
    assert "mfu" not in first  # nobody knows the peak of a CPU
