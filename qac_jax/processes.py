"""This process: its place among hosts, its command line, cores and signals. Needs no JAX."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from qac_jax.errors import Interrupted, UserError


# The arguments of `qac`, if it runs: messages quote the command that continues the run.
_command: tuple[str, ...] = ()

# The signals that this process was sent and that have not ended it. What takes them may have to
# finish first, or be a library that swallows what is raised in it: the next stage looks here.
received: list[int] = []


S = TypeVar("S")
T = TypeVar("T")


def prefetched(make: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`make` of each item; the next one is made in a thread while one is in use."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        upcoming: collections.deque[concurrent.futures.Future[T]] = collections.deque()
        for item in items:
            upcoming.append(thread.submit(make, item))
            if len(upcoming) > 1:
                yield upcoming.popleft().result()
        while upcoming:
            yield upcoming.popleft().result()


def run_by(arguments: Sequence[str]) -> None:
    global _command
    _command = tuple(arguments)


def command() -> str:
    """The command that continues what this process does: the same one again."""
    return shlex.join(["qac", *_command]) if _command else "the same call again"


_depth = 0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the block with `Interrupted`, so that files are closed in
    order; a second one has its default effect, which ends the process."""
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _depth == 0:
        received.clear()
    elif received:  # a library has swallowed what was raised in it
        raise Interrupted(received[-1])
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _: object) -> None:
        received.append(number)
        for each in handlers:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    for number in handlers if _depth == 0 else ():
        signal.signal(number, stop)
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        for number in handlers if _depth == 0 else ():
            signal.signal(number, handlers[number])


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Place:
    """This process among those of a run.

    `launcher` is "", "explicit", "slurm" or "tpu".
    """

    launcher: str = ""
    number: int = 0
    count: int = 1  # 0: several, JAX will say
    coordinator: str = ""


def place(variables: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; SLURM and TPU pods (GKE, launch/train_tpu.sh) are detected.

    Elsewhere QAC_COORDINATOR (HOST:PORT of process 0), QAC_PROCESSES (how many) and QAC_PROCESS
    (which one) define it.
    """
    coordinator = variables.get("QAC_COORDINATOR", "")
    if coordinator or variables.get("QAC_PROCESSES"):
        count, number = _number(variables, "QAC_PROCESSES"), _number(variables, "QAC_PROCESS")
        if ":" not in coordinator or number >= count:
            raise UserError(
                f"QAC_COORDINATOR={coordinator!r} (HOST:PORT of process 0), QAC_PROCESSES={count} "
                f"and QAC_PROCESS={number} (from 0) do not describe a run"
            )
        return Place("explicit", number, count, coordinator)
    if "SLURM_PROCID" in variables and (count := _number(variables, "SLURM_NTASKS", "1")) > 1:
        return Place("slurm", _number(variables, "SLURM_PROCID"), count)
    if "QAC_TPU_WORKER" in variables:  # launch/train_tpu.sh; JAX knows how many there are
        return Place("tpu", _number(variables, "QAC_TPU_WORKER"), 0)
    hosts = [name for name in variables.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) > 1:
        return Place("tpu", _number(variables, "TPU_WORKER_ID"), len(hosts))
    return Place()


def _number(variables: Mapping[str, str], name: str, default: str = "") -> int:
    text = variables.get(name, default)
    if not text.isdigit():
        raise UserError(
            f"{name}={text!r} is not a number; a run of several processes needs it in each of them"
        )
    return int(text)
