"""A compiled step before it runs: its memory and collectives, and the model's FLOPs.

The compiler counts the FLOPs of a loop's body once, so its number is not used: FLOPs come from the
objective's formula.
"""

from __future__ import annotations

import collections
import re
from typing import Any

import jax

from qac_jax import hardware
from qac_jax.progress import human


COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

IN_LOOP = " in a loop"

_CALL = re.compile(rf"\s({'|'.join(COLLECTIVES)})(?:-start)?\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_LOOP_BODY = re.compile(r"\bbody=%?([\w.-]+)")


def collectives(compiled: jax.stages.Compiled) -> dict[str, int]:
    """The number of collectives of each kind in the compiled program.

    Those in the body of a loop, which run in every iteration, are counted separately (and once).
    """
    text = compiled.as_text() or ""
    bodies = set(_LOOP_BODY.findall(text))
    counts: collections.Counter[str] = collections.Counter()
    where = ""
    for line in text.splitlines():
        if begin := _COMPUTATION.match(line):
            where = IN_LOOP if begin[1] in bodies else ""
        counts.update(name + where for name in _CALL.findall(line))
    names = [name + suffix for suffix in ("", IN_LOOP) for name in COLLECTIVES]
    return {name: counts[name] for name in names if counts[name]}


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that a device needs: for the arguments, for temporary arrays, and at the peak."""
    stats: Any = compiled.memory_analysis()
    if stats is None:  # a backend without this analysis
        return {}
    arguments = stats.argument_size_in_bytes
    fresh = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return {
        "arguments": arguments,
        "temporary": stats.temp_size_in_bytes,
        "peak": arguments + fresh + stats.temp_size_in_bytes,
    }


def mfu(step_flops: float | None, seconds: float, devices: list[Any] | None = None) -> float | None:
    """Model FLOPs per second over the peak of all devices; None where either is unknown."""
    devices = jax.devices() if devices is None else devices
    peak = hardware.peak_flops(devices[0].device_kind)
    if step_flops is None or peak is None or seconds <= 0:
        return None
    return step_flops / seconds / (peak * len(devices))


def lines(compiled: jax.stages.Compiled, parameters: int) -> list[str]:
    """What to print before step 1."""
    text = [f"parameters {human(parameters)}"]
    if needed := memory(compiled):
        text.append(
            f"memory per device: peak {human(needed['peak'], 'B')} "
            f"(arguments {human(needed['arguments'], 'B')}, "
            f"temporary {human(needed['temporary'], 'B')})"
        )
    if counts := collectives(compiled):
        text.append("collectives: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return text


def count_parameters(params: Any) -> int:
    """The number of parameters in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
