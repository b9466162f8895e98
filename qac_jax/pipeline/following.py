"""Runs over several processes: process 0 writes the artefact, the others wait for it.

Process 0 writes a heartbeat to a file beside the artefact, so that the others stop waiting when it
fails (it records the failure) or dies (the heartbeat stops).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.processes import Place


# Seconds between two heartbeats, and without one until process 0 is considered dead.
BEAT, PATIENCE = 2.0, 90.0
_POLL = 0.2


@contextlib.contextmanager
def announced(out: epath.PathLike, place: Place) -> Iterator[None]:
    """Writes heartbeats for the other processes of the run, if there are any."""
    if place.count == 1:
        yield
        return
    beats = _Beats(_file(out))
    try:
        yield
    except BaseException as error:
        beats.stop(failure=f"{type(error).__name__}: {error}")
        raise
    beats.stop()


def wait(out: epath.PathLike) -> dict[str, Any]:
    """The record of the finished artefact, once process 0 has written it."""
    first = last = _read(out)
    changed = time.monotonic()
    while True:
        record = artifacts.peek(out)
        if record is not None and record["finished"]:
            return record
        now = _read(out)
        if now != last:
            last, changed = now, time.monotonic()
        # Ignores the file of an earlier run.
        if now != first and now.get("failure"):
            raise UserError(
                f"process 0 of this run failed ({now['failure']}); see what it printed, and start "
                "all processes again"
            )
        if time.monotonic() - changed > PATIENCE:
            raise UserError(
                f"process 0 of this run has sent no heartbeat for {PATIENCE:.0f} s; check whether "
                f"it still runs and whether {out} is a folder that all processes share"
            )
        time.sleep(_POLL)


class _Beats:
    """A thread that writes heartbeats until it is stopped."""

    def __init__(self, file: epath.Path):
        self._file = file
        self._end = threading.Event()
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def stop(self, failure: str = "") -> None:
        self._end.set()
        self._thread.join()
        if failure:
            self._write({"run": self._run, "failure": failure})
        else:
            self._file.unlink(missing_ok=True)

    def _count(self) -> None:
        count = 0
        while True:
            self._write({"run": self._run, "count": count})
            count += 1
            if self._end.wait(BEAT):
                return

    def _write(self, content: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.parent / f"{self._file.name}.{os.getpid()}"
            part.write_text(json.dumps(content))
            part.replace(self._file)


def _file(out: epath.PathLike) -> epath.Path:
    """Beside the artefact and not in it, since process 0 may clear the folder."""
    out = epath.Path(out)
    return out.parent / f".{out.name}.process-0.json"


def _read(out: epath.PathLike) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(_file(out).read_text())
        return content if isinstance(content, dict) else {}
    return {}
