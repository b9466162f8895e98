"""TensorBoard's files, read back by its own code; Weights & Biases as far as it is ours."""

from __future__ import annotations

import json
import struct
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.training import metrics
from qac_jax.training.options import Monitoring


def events(folder: Path) -> list[tuple[int, str, float]]:
    """All scalars of a run's files, and (step, "start", 0) where a session begins."""
    pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.iterdir()):
        rest = path.read_bytes()
        while rest:
            (size,) = struct.unpack("<Q", rest[:8])
            event, rest = pb2.Event.FromString(rest[12 : 12 + size]), rest[16 + size :]
            if event.session_log.status == event.session_log.START:
                found.append((event.step, "start", 0.0))
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    return found


def test_a_run_that_continues_hides_what_it_does_again(tmp_path: Path) -> None:
    for step in (5, 3):
        (mirror,) = metrics.trackers(Monitoring(tensorboard=True), "run", tmp_path)
        mirror.log(step, {"loss": 2.5, "validation/mrr": 0.25})
        mirror.close()
    values = sorted(events(tmp_path / metrics.TENSORBOARD / "run"))
    assert values == sorted(
        (step, *pair)
        for step in (3, 5)
        for pair in (("start", 0.0), ("loss", 2.5), ("validation/mrr", 0.25))
    )


@pytest.mark.parametrize("by_setting", [True, False])
def test_figures_go_to_tensorboard(
    by_setting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_setting:
        monkeypatch.setenv(metrics.TENSORBOARD_DIR, str(tmp_path / metrics.TENSORBOARD))
    mirrors = metrics.trackers(Monitoring(tensorboard=by_setting), "retriever", tmp_path)
    with progress.Metrics(tmp_path / "metrics.jsonl", mirrors=mirrors) as file:
        file.log(1, {"loss": 2})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 2.0}
    assert (1, "loss", 2.0) in events(tmp_path / metrics.TENSORBOARD / "retriever")


def test_without_settings_there_are_none() -> None:
    assert metrics.trackers(Monitoring(), "retriever", Path()) == []


def test_what_is_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / metrics.TENSORBOARD).write_text("")
    with pytest.raises(UserError, match="cannot be written to .*; give a folder"):
        metrics.trackers(Monitoring(tensorboard=True), "retriever", tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb, or leave"):
        metrics.trackers(Monitoring(wandb="mine"), "retriever", tmp_path)


def test_weights_and_biases_get_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Run:
        def log(self, figures: dict[str, float], step: int) -> None:
            seen.append((step, figures))

        def finish(self) -> None:
            seen.append("finished")

    def init(**settings: Any) -> Run:
        if settings["project"] == "closed":
            raise RuntimeError("api_key not configured\n(no-tty)")
        seen.append(settings["name"])
        return Run()

    library = types.ModuleType("wandb")
    library.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", library)
    (mirror,) = metrics.trackers(Monitoring(wandb="mine"), "retriever", tmp_path)
    mirror.log(3, {"loss": 1.0})
    mirror.close()
    assert seen == ["retriever", (3, {"loss": 1.0}), "finished"]
    with pytest.raises(UserError, match="not configured .no-tty.*run `wandb login`"):
        metrics.trackers(Monitoring(wandb="closed"), "retriever", tmp_path)
