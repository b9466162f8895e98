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
from qac_jax.training import events, trackers
from qac_jax.training.settings import Monitoring


def records(folder: Path) -> list[bytes]:
    """Of all files, in the order of their names; every checksum is compared."""
    found = []
    for path in sorted(folder.iterdir()):
        rest = path.read_bytes()
        while rest:
            (size,) = struct.unpack("<Q", rest[:8])
            assert struct.unpack("<I", rest[8:12])[0] == events.masked(rest[:8])
            record, rest = rest[12 : 12 + size], rest[12 + size :]
            assert struct.unpack("<I", rest[:4])[0] == events.masked(record)
            found.append(record)
            rest = rest[4:]
    return found


def test_checksums_are_those_of_the_standard() -> None:
    """RFC 3720, appendix B.4, and the usual check value."""
    assert events.crc32c(bytes(32)) == 0x8A9136AA
    assert events.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert events.crc32c(bytes(range(32))) == 0x46DD794E
    assert events.crc32c(b"123456789") == 0xE3069283


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    event = pytest.importorskip("tensorboard.compat.proto.event_pb2").Event
    with events.EventFile(tmp_path) as file:
        file.log(5, {"loss": 2.5, "validation/mrr": 0.25})
        file.log(300, {"loss": 1.5})
    first, start, *rest = map(event.FromString, records(tmp_path))
    assert first.file_version == "brain.Event:2" and first.wall_time > 1e9
    assert start.session_log.status == start.session_log.START and start.step == 5
    values = [(e.step, v.tag, v.simple_value) for e in rest for v in e.summary.value]
    assert values == [(5, "loss", 2.5), (5, "validation/mrr", 0.25), (300, "loss", 1.5)]


def test_a_run_that_continues_has_a_second_file(tmp_path: Path) -> None:
    """TensorBoard takes all whose names have its mark, in the order of their times."""
    for step in (1, 2):
        with events.EventFile(tmp_path) as file:
            file.log(step, {"loss": 1.0})
    assert sum("tfevents" in path.name for path in tmp_path.iterdir()) == 2
    assert len(records(tmp_path)) == 6


@pytest.mark.parametrize("by_setting", [True, False])
def test_figures_go_to_tensorboard(
    by_setting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_setting:
        monkeypatch.setenv(trackers.TENSORBOARD, str(tmp_path / "board"))
    chosen = Monitoring(tensorboard=str(tmp_path / "board") if by_setting else "")
    mirrors = trackers.opened(chosen, "retriever")
    with progress.Metrics(tmp_path / "metrics.jsonl", mirrors=mirrors) as metrics:
        metrics.log(1, {"loss": 2})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 2.0}
    assert any(b"loss" in record for record in records(tmp_path / "board" / "retriever"))


def test_without_settings_there_are_none() -> None:
    assert trackers.opened(Monitoring(), "retriever") == []


def test_what_is_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to .*; give a folder"):
        trackers.opened(Monitoring(tensorboard=str(tmp_path / "file")), "retriever")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb, or leave"):
        trackers.opened(Monitoring(wandb="mine"), "retriever")


def test_weights_and_biases_get_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
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
    (mirror,) = trackers.opened(Monitoring(wandb="mine"), "retriever")
    mirror.log(3, {"loss": 1.0})
    mirror.close()
    assert seen == ["retriever", (3, {"loss": 1.0}), "finished"]
    with pytest.raises(UserError, match="not configured .no-tty.*run `wandb login`"):
        trackers.opened(Monitoring(wandb="closed"), "retriever")
