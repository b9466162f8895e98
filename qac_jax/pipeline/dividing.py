"""Divides the shards of a stage among the processes of a run; process 0 joins them.

Which shard belongs to which process depends on its number alone, and its bytes on its content
alone, so the artefact is that of one process. Processes need only a folder that all of them see:
each writes its shards and their journal beside the artefact, and heartbeats (`following.py`). The
shards of a process that has failed, sends no heartbeats any more or never began are divided among
the others. If process 0 ends, the same command continues, on any number of processes.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from etils import epath

from qac_jax import progress
from qac_jax.artifacts import Writer, hosts
from qac_jax.errors import UserError
from qac_jax.pipeline import following
from qac_jax.pipeline.following import Beats, Watch
from qac_jax.processes import Place


_POLL = 0.5
_BEGUN = "begun"


class Named(Protocol):
    """A shard, by the name of its file."""

    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Named)


class Finished(Exception):
    """The artefact is complete: the others did not need this process."""


class Team:
    """This process among those that write the shards of one artefact."""

    def __init__(self, out: epath.PathLike, place: Place, beats: Beats | None):
        self.number, self.count = place.number, place.count
        self._out, self._beats = epath.Path(out), beats
        self._watches = {
            number: Watch(out, number) for number in range(self.count) if number != self.number
        }
        self._given_up: set[int] = set()

    def once(self, step: str, work: Callable[[], Any]) -> None:
        """Work of process 0 alone, for which the others wait: statistics of the whole corpus."""
        if self.number == 0:
            work()
            if self._beats is not None:
                self._beats.publish(step)
            return
        while step not in self._watches[0].look().get("steps", ()):
            self._wait()

    def turns(
        self, out: Writer, shards: Sequence[S], is_done: Callable[[S], bool] = lambda shard: True
    ) -> Iterator[list[S]]:
        """The missing shards for this process: its own, then those of processes that are lost.

        Ends when all shards are complete, whoever has written them.
        """
        if self.count == 1:
            yield [s for s in shards if s.name not in out.done or not is_done(s)]
            return
        while True:
            hosts.refresh(out)
            left = [(n, s) for n, s in enumerate(shards) if s.name not in out.done]
            if not left:
                return
            own = [s for n, s in left if n % self.count == self.number]
            if mine := own or self._inherited(left):
                yield mine
            else:
                self._wait()

    def begin(self) -> None:
        """Process 0 says that the folder is its own; the others wait until it does."""
        self.once(_BEGUN, lambda: None)

    def check_key(self, key: str) -> None:
        """Raises where process 0 makes something else."""
        if self.number and self._watches[0].look().get("key", key) != key:
            raise UserError(
                f"process 0 writes {self._out} with other settings than this process; start all "
                "processes with the same command and the same inputs"
            )

    def _inherited(self, left: Sequence[tuple[int, S]]) -> list[S]:
        """This process's part of the shards of lost processes: one at a time, as more may die."""
        lost = {number for number, watch in self._watches.items() if number and watch.is_lost()}
        for number in sorted(lost - self._given_up):
            progress.say(f"process {number} is lost; the others take over its shards")
        self._given_up = lost
        living = [number for number in range(self.count) if number not in lost]
        orphans = [s for n, s in left if n % self.count in lost]
        return orphans[living.index(self.number) :: len(living)][:1]

    def _wait(self) -> None:
        if self.number:
            if following.finished(self._out) is not None:
                raise Finished
            self._watches[0].refuse_failure()
        time.sleep(_POLL)


_ALONE = Team("", Place(), None)
_team: contextvars.ContextVar[Team] = contextvars.ContextVar("team", default=_ALONE)


def team() -> Team:
    """The processes that share the stage which runs now; one, if none does."""
    return _team.get()


def once(step: str, work: Callable[[], Any]) -> None:
    """Work of process 0 alone, for which the others wait."""
    team().once(step, work)


@contextlib.contextmanager
def joined(out: epath.PathLike, place: Place, beats: Beats | None) -> Iterator[Team]:
    """The processes that share the shards of this artefact."""
    token = _team.set(Team(out, place, beats))
    try:
        yield team()
    finally:
        _team.reset(token)


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

        device = os.environ.get("SLURM_LOCALID", "0")
        jax.config.update("jax_cuda_visible_devices", device)
        jax.config.update("jax_rocm_visible_devices", device)
    return place


@contextlib.contextmanager
def follower(out: epath.PathLike, place: Place, key: str) -> Iterator[Writer]:
    """The writer of a process other than process 0, once that has begun."""
    with following.announced(out, place, key) as beats, joined(out, place, beats) as shared:
        shared.begin()
        shared.check_key(key)
        yield hosts.HostWriter(epath.Path(out), place.number)
