"""Stages that several processes share, one a host: process 0 completes the artefact.

Which shard belongs to which process depends on its number alone, and its bytes on its content
alone, so the artefact is that of one process. Processes need only a folder that all of them see.
Each of the others writes its shards into a folder of its own inside of the unfinished artefact,
with a journal of its own, so no file has two writers; process 0 takes over what these journals
name. If a process fails, all of them end, and the same command continues, on any number of
processes; one that is gone without a word is waited for until its launcher ends the others.
"""

import contextlib
import contextvars
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etils import epath

from qac_jax import artifacts, progress
from qac_jax.artifacts import Writer
from qac_jax.artifacts.writing import CLEARING, FAILED, RUN, journal, mend
from qac_jax.errors import UserError
from qac_jax.processes import Place


# Folders in an unfinished artefact: shards of the other processes, and steps that are done.
_HOMES, _STEPS = f"{artifacts.SCRATCH}/hosts", f"{artifacts.SCRATCH}/steps"
# Seconds between two looks, between two lines that say what is waited for, and until process 0 must
# have begun a stage.
_POLL, _SAY, _PATIENCE = 0.5, 60.0, 1800.0
_AGAIN = "see what it printed, and start all processes again"


class HostWriter(Writer):
    """The writer of a process other than process 0: it reads in the artefact, writes beside it."""

    joins = False

    def __init__(self, path: epath.Path, number: int):
        super().__init__(path, {})
        self._number = number
        self._home = path / _HOMES / f"process-{number}"
        self._home.mkdir(parents=True, exist_ok=True)
        mend(self._home)
        self._files.update(journal(self._home))

    def inner(self, name: str) -> Writer:
        return HostWriter(self.scratch(name), self._number)

    def take(self, folder: epath.Path, name: str, entry: dict[str, Any]) -> None:
        self._files[name] = entry


class Team:
    """This process among those that write the shards of one artefact."""

    def __init__(self, place: Place, out: epath.PathLike = "", run: int = 0):
        self.number, self.count = place.number, place.count
        self.out, self._run = epath.Path(out), run

    def join(self, out: Writer) -> None:
        """Notes what the other processes have completed, also in an interrupted run: where a
        journal names it, and it is there. Process 0 takes it over."""
        homes: list[epath.Path] = []
        with contextlib.suppress(FileNotFoundError):
            homes = sorted((out.path / _HOMES).iterdir())
        for home in (*homes, *(() if out.joins else (out.path,))):
            for name, entry in journal(home).items():
                if name not in out.done and (home / name).exists():
                    out.take(home, name, entry)

    def wait(self, out: Writer, names: Sequence[str]) -> None:

        def complete() -> bool:
            self.join(out)
            return out.done.issuperset(names)

        if self.count > 1:
            self._wait(complete, "shards of the other processes")

    def _wait(self, is_over: Callable[[], bool], what: str, begun: bool = True) -> None:
        said = time.monotonic()
        while not is_over():
            if begun:
                self._refuse_failure()
            if time.monotonic() - said > _SAY:
                said = time.monotonic()
                progress.say(f"waiting for {what}; if one is gone, start all processes again")
            time.sleep(_POLL)

    def _refuse_failure(self) -> None:
        if self.number:
            claim = artifacts.peek(self.out) or {}
            if claim.get("finished"):
                raise Finished
            failures = {0: claim.get(FAILED)}
        else:
            failures = {n: _failure(self.out, n, self._run) for n in range(1, self.count)}
        for number, why in failures.items():
            if why:
                raise UserError(f"process {number} of this run failed ({why}); {_AGAIN}")


class Finished(Exception):
    """The artefact is complete: the others did not need this process."""


_ALONE = Team(Place())
_team: contextvars.ContextVar[Team] = contextvars.ContextVar("team", default=_ALONE)


def team() -> Team:
    """The processes that share the stage which runs now; one, if none does."""
    return _team.get()


def once(step: str, work: Callable[[], Any]) -> None:
    """Work of process 0 alone, for which the others wait: statistics of the whole corpus."""
    team = _team.get()
    mark = team.out / _STEPS / step
    if team.number:
        team._wait(mark.exists, f"process 0 ({step})")
        return
    work()
    if team.count > 1:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


@contextlib.contextmanager
def joined(out: Writer, place: Place) -> Iterator[None]:
    """Process 0 shares the shards of this artefact with the others, if there are any."""
    token = _team.set(Team(place, out.path, out.run))
    try:
        yield
    finally:
        _team.reset(token)


def follow(out: epath.PathLike, key: str, place: Place, work: Callable[[Writer], None]) -> None:
    """Does the part of a process other than process 0, and waits for the finished artefact."""
    folder, shared = epath.Path(out), Team(place, out)
    before, run, began = artifacts.peek(folder), 0, time.monotonic()

    def begun() -> bool:
        """Whether process 0 has claimed the folder for what this process makes, too."""
        nonlocal run
        record = artifacts.peek(folder)
        # What is there from the first look on may be left from another run.
        changed, late = record != before, time.monotonic() - began > _PATIENCE
        if record and (changed or not (record["finished"] or FAILED in record)):
            run = record.get(RUN, 0)
            if CLEARING not in record and record["key"] == key:
                return True
            if CLEARING not in record and (changed or late):
                raise UserError(
                    f"process 0 writes {out} with other settings than this process; start all "
                    "processes with the same command and the same inputs"
                )
        if late:
            raise UserError(f"process 0 of this run has not begun {out}; {_AGAIN}")
        return False

    def finished() -> bool:
        return bool((artifacts.peek(folder) or {}).get("finished"))

    token = _team.set(shared)
    try:
        shared._wait(begun, f"process 0, which has not begun {out}", begun=False)
        with contextlib.suppress(Finished):
            work(HostWriter(folder, place.number))
            shared._wait(finished, "process 0")
    except BaseException as error:
        note = _note(folder, place.number)
        with contextlib.suppress(OSError):
            if run:
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(json.dumps([run, f"{type(error).__name__}: {error}"]))
        raise
    finally:
        _team.reset(token)
    with contextlib.suppress(OSError):  # a folder that this process may have made meanwhile
        artifacts.tidy(folder)


def placed(place: Place) -> Place:
    """The place with the number of processes known, and each on its own devices."""
    if place.launcher == "tpu":  # the hosts of a slice only start together
        import jax

        from qac_jax.training import mesh

        mesh.join(place)
        return Place(place.launcher, jax.process_index(), jax.process_count(), place.coordinator)
    tasks = os.environ.get("SLURM_NTASKS_PER_NODE", "1")
    if place.launcher == "slurm" and tasks.isdigit() and int(tasks) > 1:
        import jax

        for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
            jax.config.update(name, os.environ.get("SLURM_LOCALID", "0"))
    return place


def _note(out: epath.Path, number: int) -> epath.Path:
    """Where a process other than process 0 says why it failed, and in which run."""
    return out / _HOMES / f"process-{number}" / "failed.json"


def _failure(out: epath.Path, number: int, run: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        of, why = json.loads(_note(out, number).read_text())
        return why if of == run else ""
    return ""
