"""A signal ends a stage, wherever it lands."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import weakref
from typing import Any

import pytest

from qac_jax.errors import Interrupted
from qac_jax.pipeline.stage import interruptible
from qac_jax.training.train import watch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_block(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stopped, interruptible():
        os.kill(os.getpid(), number)
        time.sleep(5)
    assert stopped.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_one_after_the_last_step_lets_the_stage_end_but_not_the_next_begin() -> None:
    """A training that had no further step swallowed it, and the recipe went on."""
    with interruptible():  # of the command
        with interruptible(), watch() as signals:  # of the stage
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.number == signal.SIGTERM
        with pytest.raises(Interrupted) as stopped, interruptible():
            pass
    assert stopped.value.signal_number == signal.SIGTERM


def test_also_within_a_callback_of_the_garbage_collector() -> None:
    """JAX has one; what is raised in it is printed and forgotten."""
    seen: list[str] = []

    def collecting(phase: str, info: Any) -> None:
        if phase == "start" and not seen:
            seen.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(100):
                pass

    gc.callbacks.append(collecting)
    try:
        with pytest.raises(Interrupted), interruptible():
            gc.collect()
            assert seen
            until = time.monotonic() + 5
            while time.monotonic() < until:
                time.sleep(0.01)
    finally:
        gc.callbacks.remove(collecting)


def test_other_ignored_exceptions_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_value))

    class Kept:
        pass

    def breaks(_: Any) -> None:
        raise ValueError("in a callback")

    with interruptible():
        kept = Kept()
        reference = weakref.ref(kept, breaks)
        del kept
    assert [str(error) for error in told] == ["in a callback"] and reference() is None
