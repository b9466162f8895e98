"""A window of steps profiled by JAX, and its heaviest kernels as a table in the terminal."""

from __future__ import annotations

import collections
import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from qac_jax.errors import UserError


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
                f"profile={text!r} is no window of steps; expected FIRST:LAST such as 10:15"
            )
        return cls(int(match[1]), int(match[2]))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """All calls of one kernel."""

    name: str
    calls: int
    seconds: float


def start(folder: os.PathLike[str] | str) -> None:
    """Begins to record; the devices should be idle."""
    jax.profiler.start_trace(os.fspath(folder))


def stop(folder: os.PathLike[str] | str) -> list[Kernel]:
    """Ends the recording; the kernels, heaviest first."""
    jax.profiler.stop_trace()
    files = glob.glob(f"{os.fspath(folder)}/**/*.xplane.pb", recursive=True)
    return kernels(jax.profiler.ProfileData.from_file(max(files, key=os.path.getmtime)))


def kernels(profile: Any) -> list[Kernel]:
    """Kernels of all devices by their own time (what they call is not counted in)."""
    calls: collections.Counter[str] = collections.Counter()
    seconds: dict[str, float] = collections.defaultdict(float)
    for line in _device_lines(profile):
        for name, own in _own_times(line):
            calls[name] += 1
            seconds[name] += own * 1e-9
    heaviest = sorted(seconds, key=lambda name: -seconds[name])
    return [Kernel(name, calls[name], seconds[name]) for name in heaviest]


def table(found: Iterable[Kernel], steps: int, rows: int = 12) -> str:
    """The heaviest kernels with their share of all kernel time."""
    found = list(found)
    total = sum(kernel.seconds for kernel in found)
    if not total:
        return "profile: no kernel was recorded"
    lines = [f"{'kernel':<58} {'calls/step':>10} {'ms/step':>9} {'share':>6}"]
    for kernel in found[:rows]:
        name = kernel.name if len(kernel.name) <= 58 else kernel.name[:57] + "…"
        lines.append(
            f"{name:<58} {kernel.calls / steps:>10.1f} {kernel.seconds * 1e3 / steps:>9.3f} "
            f"{kernel.seconds / total:>6.1%}"
        )
    rest = sum(kernel.seconds for kernel in found[rows:])
    if rest:
        label = f"({len(found) - rows} others)"
        lines.append(f"{label:<58} {'':>10} {rest * 1e3 / steps:>9.3f} {rest / total:>6.1%}")
    return "\n".join(lines)


def _device_lines(profile: Any) -> Iterable[list[tuple[str, float, float]]]:
    """(name, start, duration) of kernels, one list for each queue of a device."""
    planes = list(profile.planes)
    devices = [p for p in planes if p.name.startswith("/device:") and "CUSTOM" not in p.name]
    for plane in devices:
        lines = list(plane.lines)
        chosen = [line for line in lines if line.name == "XLA Ops"]  # TPU
        chosen = chosen or [line for line in lines if line.name.startswith("Stream")]  # GPU
        for line in chosen:
            yield [(e.name, e.start_ns, e.duration_ns) for e in line.events]
    if devices:
        return
    for plane in planes:  # CPU: kernels stand among other events of the host's threads
        if plane.name == "/host:CPU":
            for line in plane.lines:
                yield [
                    (e.name, e.start_ns, e.duration_ns)
                    for e in line.events
                    if _is_kernel(dict(e.stats))
                ]


def _is_kernel(stats: Mapping[str, Any]) -> bool:
    return "hlo_op" in stats


def _own_times(events: list[tuple[str, float, float]]) -> Iterable[tuple[str, float]]:
    """Durations less those of the events inside (a loop holds the kernels of its body)."""
    own: list[list[Any]] = []
    stack: list[tuple[float, int]] = []  # (end, index into own)
    for name, begin, duration in sorted(events, key=lambda e: (e[1], -e[2])):
        while stack and stack[-1][0] <= begin:
            stack.pop()
        if stack:
            own[stack[-1][1]][1] -= duration
        own.append([name, duration])
        stack.append((begin + duration, len(own) - 1))
    return [(name, max(duration, 0.0)) for name, duration in own]
