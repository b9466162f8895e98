"""A stage on several hosts: here threads, since they only meet in files."""

import contextvars
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from qac_jax import processes
from qac_jax.pipeline import hosts, stage
from qac_jax.pipeline.stage import Stage
from qac_jax.processes import Place


_ALONE = Place()
_PLACE = contextvars.ContextVar("place", default=_ALONE)


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks in quick succession; a thread may be a process."""
    monkeypatch.setattr(processes, "place", _PLACE.get)
    monkeypatch.setattr(hosts, "_POLL", 0.02)
    monkeypatch.setattr(hosts, "_PATIENCE", 5.0)


def execute(
    stage_of: Callable[[int], Stage], out: Path, numbers: Iterable[int], count: int = 0
) -> list[Any]:
    """What each process returns or raises; `count`: how many there are, if the stage asks."""
    ends: list[Any] = []

    def run(number: int) -> None:
        if count:
            _PLACE.set(Place("numbered", number, count))
        try:
            ends.append(stage.execute(stage_of(number), out))
        except BaseException as error:
            ends.append(error)

    threads = [
        threading.Thread(target=contextvars.Context().run, args=(run, number), daemon=True)
        for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return ends
