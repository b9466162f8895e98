"""Processes that wait for process 0: they end when it fails or dies, and not before."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from toy_stages import Numbers

from qac_jax.errors import UserError
from qac_jax.pipeline import following, stage
from qac_jax.processes import Place


SEVERAL = Place("explicit", 0, 2, "h:1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BEAT", 0.05)
    monkeypatch.setattr(following, "PATIENCE", 1.0)


def wait_in_a_thread(out: Path) -> tuple[threading.Thread, list[BaseException]]:
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            following.wait(out)
        except UserError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, caught


def test_one_process_leaves_no_trace(tmp_path: Path) -> None:
    with following.announced(tmp_path / "out", Place()):
        assert list(tmp_path.iterdir()) == []


def test_a_failure_is_passed_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    thread, caught = wait_in_a_thread(out)
    with pytest.raises(UserError), following.announced(out, SEVERAL):
        time.sleep(0.3)
        raise UserError("the file is bad")
    thread.join(5)
    assert not thread.is_alive()
    assert "process 0 of this run failed (UserError: the file is bad)" in str(caught[0])


def test_a_failure_of_an_earlier_run_is_not_news(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError), following.announced(out, SEVERAL):
        raise UserError("yesterday")
    thread, caught = wait_in_a_thread(out)
    with following.announced(out, SEVERAL):
        time.sleep(1.5)  # longer than patience, but it counts
        stage.execute(Numbers(), out)
    thread.join(5)
    assert not thread.is_alive() and not caught


def test_a_dead_process_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has sent no heartbeat for 1 s"):
        following.wait(tmp_path / "out")
