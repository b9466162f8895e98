"""Runs over several processes: process 0 writes the artefact, the others wait for it.

Process 0 writes a heartbeat to a file beside the artefact, so that the others stop waiting when it
fails (it records the failure) or dies (the heartbeat stops). With it, it says which steps of its
work are done. Where the others share the work (`dividing.py`), they write heartbeats too.
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
def announced(out: epath.PathLike, place: Place, key: str = "") -> Iterator[Beats | None]:
    """Writes heartbeats for the other processes of the run, if there are any."""
    if place.count == 1:
        yield None
        return
    beats = Beats(_file(out, place.number), key)
    try:
        yield beats
    except BaseException as error:
        beats.stop(failure=f"{type(error).__name__}: {error}")
        raise
    beats.stop()


class Watch:
    """What a process says by its heartbeats, since this watch began."""

    def __init__(self, out: epath.PathLike, number: int = 0):
        self._out, self.number = epath.Path(out), number
        self._first = self._last = read(out, number)
        self._changed = time.monotonic()

    def look(self) -> dict[str, Any]:
        """The newest heartbeat; {} where there is none but that of an earlier run."""
        now = read(self._out, self.number)
        if now != self._last:
            self._last, self._changed = now, time.monotonic()
        return {} if now == self._first else now

    def is_lost(self) -> bool:
        """Whether the process has failed, or has sent nothing for a while."""
        said = self.look()
        return bool(said.get("failure")) or time.monotonic() - self._changed > PATIENCE

    def refuse_failure(self) -> None:
        """Raises where process 0 has failed or is considered dead."""
        if failure := self.look().get("failure"):
            raise UserError(
                f"process {self.number} of this run failed ({failure}); see what it printed, and "
                "start all processes again"
            )
        if self.is_lost():
            raise UserError(
                f"process {self.number} of this run has sent no heartbeat for {PATIENCE:.0f} s; "
                f"check whether it still runs and whether {self._out} is a folder that all "
                "processes share"
            )


def finished(out: epath.PathLike) -> dict[str, Any] | None:
    """The record of the artefact; None until process 0 has finished it."""
    record = artifacts.peek(out)
    return record if record is not None and record["finished"] else None


def wait(out: epath.PathLike) -> dict[str, Any]:
    """The record of the finished artefact, once process 0 has written it."""
    watch = Watch(out)
    while (record := finished(out)) is None:
        watch.refuse_failure()
        time.sleep(_POLL)
    return record


class Beats:
    """A thread that writes heartbeats until it is stopped."""

    def __init__(self, file: epath.Path, key: str = ""):
        self._file, self._key = file, key
        self._steps: tuple[str, ...] = ()
        self._end = threading.Event()
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def publish(self, step: str) -> None:
        """Says with every heartbeat that a step is done, which others wait for."""
        self._steps = (*self._steps, step)

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
            steps = list(self._steps)
            self._write({"run": self._run, "count": count, "key": self._key, "steps": steps})
            count += 1
            if self._end.wait(BEAT):
                return

    def _write(self, content: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.parent / f"{self._file.name}.{os.getpid()}"
            part.write_text(json.dumps(content))
            part.replace(self._file)


def _file(out: epath.PathLike, number: int = 0) -> epath.Path:
    """Beside the artefact and not in it, since process 0 may clear the folder."""
    out = epath.Path(out)
    return out.parent / f".{out.name}.process-{number}.json"


def read(out: epath.PathLike, number: int = 0) -> dict[str, Any]:
    """The last heartbeat of a process of this run or an earlier one; {}: there is none."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(_file(out, number).read_text())
        return content if isinstance(content, dict) else {}
    return {}
