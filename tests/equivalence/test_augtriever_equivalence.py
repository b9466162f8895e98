"""AugTriever's objectives: devices, chunks, dropout; MoCo's state in checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.training import mesh as meshes
from qac_jax.training.options import Monitoring
from qac_jax.training.step import Engine
from qac_jax.training.train import train


BERT = BertConfig(
    vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=16
)
BATCH = 16
SPEC = {"passage": (12,), "context": (8,), "spans": (3, 6)}


class Loader:
    """Batches made of (seed, number); fails when asked for one too many."""

    def __init__(self, limit: int = -1):
        self.spec = {n: ((BATCH, *s), np.dtype(np.int32)) for n, s in SPEC.items()}
        lengths = {f"{n}_length": ((BATCH, *s[:-1]), np.dtype(np.int32)) for n, s in SPEC.items()}
        self.spec |= {**lengths, "extract": ((BATCH,), np.dtype(np.int32))}
        self.examples_per_epoch = 10 * BATCH
        self.identity = "memory"
        self._limit, self._next = limit, 0

    def __next__(self) -> dict[str, np.ndarray]:
        if self._next == self._limit:
            raise Stopped
        rng = np.random.default_rng(self._next)
        self._next += 1
        found: dict[str, Any] = {"extract": rng.integers(0, 2, BATCH).astype(np.int32)}
        for name, shape in SPEC.items():
            lengths = rng.integers(3, shape[-1] + 1, (BATCH, *shape[:-1])).astype(np.int32)
            ids = rng.integers(5, 64, (BATCH, *shape)).astype(np.int32)
            found[name] = np.where(np.arange(shape[-1]) < lengths[..., None], ids, 0)
            found[f"{name}_length"] = lengths
        return found

    def __iter__(self) -> Loader:
        return self

    def state(self) -> dict[str, int]:
        return {"next": self._next}

    def restore(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Stopped(Exception):
    """What stands for a crash."""


def objective(kind: str, **changes: Any) -> Any:
    model = DualEncoder(DualEncoderConfig(BERT, pooling="mean"), Runtime(scan=True))
    if kind == "moco":
        return MoCo(model, queue_size=64, momentum=0.9, **changes)
    return InBatch(model, **changes)


def engine(kind: str, shape: tuple[int, int, int], **changes: Any) -> Engine:
    mesh = meshes.make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    rules = meshes.rules_named("default")
    return Engine(objective(kind, **changes), optax.sgd(0.1), mesh, rules, seed=3)


def after(made: Engine, steps: int = 2) -> tuple[Any, list[float]]:
    """Variables and losses after some steps."""
    data, state, losses = Loader(), made.create(), []
    spec = meshes.whole_spec(data.spec, made.mesh)
    step = made.compile_step(spec)
    for _ in range(steps):
        state, metrics = step(state, meshes.place(next(data), made.mesh))
        losses.append(float(metrics["loss"]))
    return jax.device_get(state.variables), losses


@functools.cache
def alone(kind: str) -> tuple[Any, list[float]]:
    """What one device makes of it."""
    return after(engine(kind, (1, 1, 1)))


CASES: list[Any] = [
    pytest.param("in_batch", (8, 1, 1), {}, marks=pytest.mark.slow),
    pytest.param("moco", (8, 1, 1), {}, marks=pytest.mark.slow),
    pytest.param("moco", (2, 2, 2), {"chunk": 4}, marks=pytest.mark.slow),
    pytest.param("in_batch", (2, 2, 1), {"chunk": 8}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "shape", "changes"), CASES)
def test_devices_and_chunks_change_nothing(kind: str, shape: Any, changes: dict[str, Any]) -> None:
    made = engine(kind, shape, **changes)
    variables, losses = after(made)
    expected, known = alone(kind)
    np.testing.assert_allclose(losses, known, rtol=2e-5)
    for a, b in zip(jax.tree.leaves(variables), jax.tree.leaves(expected), strict=True):
        assert np.abs(a - b).max() <= 2e-5 * max(1.0, np.abs(b).max())
    if kind == "moco":
        places = made.shardings.variables
        assert places["queue"]["keys"].spec[0] == tuple(
            axis for axis in ("data", "fsdp") if made.mesh.shape[axis] > 1
        ) or places["queue"]["keys"].spec[0] in ("data", "fsdp")
        assert jax.tree.map(str, places["momentum"]) == jax.tree.map(str, places["params"])
        assert int(variables["queue"]["pointer"]) == 2 * BATCH


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_same_queue_bit_for_bit(tmp_path: Path) -> None:
    monitoring = Monitoring(log_every=0, save_every=2)
    made = engine("moco", (1, 1, 1))

    def run(folder: str, data: Any) -> Any:
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
