"""A window of steps profiled by JAX, and its most expensive kernels as a table."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from qac_jax.errors import UserError
from qac_jax.training.journal import announce


# Of the trace, in a run's folder and in its artefact.
FOLDER = "profile"
# Beside it: operation -> the module that it comes from.
_ORIGINS = "modules.json"


@dataclasses.dataclass(frozen=True)
class Window:
    """Steps first + 1 … last of a run; empty when first = last."""

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> Window:
        """ "10:15" are the five steps after step 10; "" is none."""
        if not text:
            return cls()
        match = re.fullmatch(r"(\d+):(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise UserError(
                f"profile={text!r} is not a valid window of steps; expected FIRST:LAST "
                "such as 10:15"
            )
        return cls(int(match[1]), int(match[2]))

    def check(self, total: int) -> None:
        """Raises UserError for a window that a run of this length does not reach."""
        if self.last > total:
            raise UserError(
                f"profile='{self.first}:{self.last}' is a window after the end of a run of "
                f"{total} steps; expected FIRST:LAST with LAST at most {total}"
            )


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The calls of one kernel and their total time."""

    name: str
    calls: int
    seconds: float


Kernels = list[Kernel]


class Event(NamedTuple):
    """One call of a kernel, times in nanoseconds."""

    name: str
    operation: str  # of the compiled program, where it is known
    start: float
    duration: float


# An operation and the module that it was traced from, in the text of a compiled program.
_ORIGIN = re.compile(r'^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name="([^"]+)"', re.MULTILINE)
_WRAPPED = re.compile(r"^(?:\w+\()+([\w.]+)\)+$")  # transpose(jvp(Bert))


def start(folder: os.PathLike[str] | str) -> None:
    """Starts recording; the devices should be idle."""
    jax.profiler.start_trace(os.fspath(folder))


def how_to_open(folder: os.PathLike[str] | str) -> str:
    """What to do with a trace."""
    place = os.fspath(folder)
    return (
        f"the trace is in {place}; look at it with: xprof --logdir {place} "
        "(pip install 'qac_jax[profile]'), or open its *.trace.json.gz at ui.perfetto.dev"
    )


def stop(folder: os.PathLike[str] | str, compiled: jax.stages.Compiled | None = None) -> Kernels:
    """Stops recording; the most expensive kernels first, named by their origins in `compiled`."""
    jax.profiler.stop_trace()
    if compiled is not None:
        modules = json.dumps(origins(compiled.as_text() or ""), indent=1)
        (Path(folder) / _ORIGINS).write_text(modules)
    return read(folder)


class Recording:
    """The recording of a run's window, and its table when it is over."""

    def __init__(self, window: Window, folder: os.PathLike[str] | str):
        self._window, self._folder, self._runs = window, folder, False

    def begin(self, step: int, state: Any) -> None:
        """Before the step after `step`."""
        if self._window.last and step == self._window.first:
            jax.block_until_ready(state)
            start(self._folder)
            self._runs = True

    def end(self, step: int, state: Any, compiled: jax.stages.Compiled) -> None:
        """After `step`; a run that resumed within the window has recorded nothing."""
        if self._runs and step == self._window.last:
            self._runs = False
            jax.block_until_ready(state)
            kernels = stop(self._folder, compiled)
            announce(table(kernels, self._window.last - self._window.first))


def read(folder: os.PathLike[str] | str) -> Kernels:
    """The kernels of the last recording in a folder, the most expensive first."""
    files = list(Path(folder).rglob("*.xplane.pb"))
    if not files:
        raise UserError(f"{folder} holds no *.xplane.pb; give the profile folder of a run")
    profile = jax.profiler.ProfileData.from_file(str(max(files, key=os.path.getmtime)))
    named = Path(folder) / _ORIGINS
    return kernels(profile, json.loads(named.read_text()) if named.exists() else {})


def kernels(profile: Any, origins: dict[str, str]) -> Kernels:
    """Kernels of all devices by their own time (without that of kernels inside them).

    Kernels of the same module in different layers are added up.
    """
    # A GPU's kernel is named after its operation, without dots.
    origins = {name.replace(".", "_"): module for name, module in origins.items()} | origins
    calls: collections.Counter[str] = collections.Counter()
    seconds: dict[str, float] = collections.defaultdict(float)
    for line in _device_lines(profile):
        for event, own in _own_times(line):
            # In a CUDA graph the operation is the whole graph, and the kernel has its own name.
            name = origins.get(event.operation) or origins.get(event.name, event.name)
            calls[name] += 1
            seconds[name] += own * 1e-9
    heaviest = sorted(seconds, key=lambda name: -seconds[name])
    return [Kernel(name, calls[name], seconds[name]) for name in heaviest]


def origins(text: str) -> dict[str, str]:
    """Operation of a compiled program -> the module that it comes from, without layer numbers.

    "transpose(jvp(Bert))/layers/3/mlp/up/dot_general" becomes "back Bert/layers/*/mlp/up …".
    """
    modules = {}
    for name, origin in _ORIGIN.findall(text):
        parts = [part for part in origin.split("/") if not part.startswith("jit(")]
        backward = any(part.startswith("transpose(") for part in parts)
        parts = [_WRAPPED.sub(r"\1", part) for part in parts]
        parts = ["*" if part.isdigit() else part for part in parts if part]
        modules[name] = ("back " if backward else "") + "/".join(parts)
    return modules


def table(kernels: Kernels, steps: int, rows: int = 12) -> str:
    """The most expensive kernels with their share of all kernel time."""
    total = sum(kernel.seconds for kernel in kernels)
    if not total:
        return "profile: no kernel was recorded"
    lines = [f"{'kernel':<64} {'calls/step':>10} {'ms/step':>9} {'share':>6}"]
    for kernel in kernels[:rows]:
        name = kernel.name if len(kernel.name) <= 64 else kernel.name[:30] + "…" + kernel.name[-33:]
        lines.append(
            f"{name:<64} {kernel.calls / steps:>10.1f} {kernel.seconds * 1e3 / steps:>9.3f} "
            f"{kernel.seconds / total:>6.1%}"
        )
    rest = sum(kernel.seconds for kernel in kernels[rows:])
    if rest:
        label = f"({len(kernels) - rows} others)"
        lines.append(f"{label:<64} {'':>10} {rest * 1e3 / steps:>9.3f} {rest / total:>6.1%}")
    return "\n".join(lines)


def _device_lines(profile: Any) -> Iterable[list[Event]]:
    """Events of kernels, one list for each queue of a device."""
    planes = list(profile.planes)
    devices = [p for p in planes if p.name.startswith("/device:") and "CUSTOM" not in p.name]
    for plane in devices:
        lines = list(plane.lines)
        chosen = [line for line in lines if line.name == "XLA Ops"]  # TPU
        chosen = chosen or [line for line in lines if line.name.startswith("Stream")]  # GPU
        for line in chosen:
            yield [_event(e) for e in line.events]
    if devices:
        return
    for plane in planes:  # CPU: kernels are among other events of the host's threads
        if plane.name == "/host:CPU":
            for line in plane.lines:
                yield [event for event in map(_event, line.events) if event.operation]


def _event(event: Any) -> Event:
    return Event(
        event.name, str(dict(event.stats).get("hlo_op", "")), event.start_ns, event.duration_ns
    )


def _own_times(events: list[Event]) -> Iterable[tuple[Event, float]]:
    """Durations minus those of the events inside (a loop contains the kernels of its body).

    A kernel that begins before the one before it has ended, as on GPUs, is not inside of it.
    """
    own: list[tuple[Event, list[float]]] = []
    stack: list[tuple[float, list[float]]] = []  # (end, own duration)
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        end = event.start + event.duration
        while stack and stack[-1][0] < end:
            stack.pop()
        if stack:
            stack[-1][1][0] -= event.duration
        duration = [event.duration]
        own.append((event, duration))
        stack.append((end, duration))
    return [(event, max(duration[0], 0.0)) for event, duration in own]
