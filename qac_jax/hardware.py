"""Peak rates and memory of known devices, for MFU and for plans; precisions; compiled programs.

Dense peaks from the vendors' data sheets. For an unknown device no MFU is printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from typing import Any

from qac_jax.hashing import user_cache
from qac_jax.processes import cores


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator: dense peak of its half precision, and memory."""

    name: str
    peak_flops: float
    memory_bytes: float
    precision: str = "bfloat16"  # what its peak is of, and what trains with it (`--precision`)


_GIB = 2.0**30

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("V100-32", 125e12, 32 * _GIB, "float16"),
        Device("A100-40", 312e12, 40 * _GIB),
        Device("A100-80", 312e12, 80 * _GIB),
        Device("H100", 989e12, 80 * _GIB),
        Device("H200", 989e12, 141 * _GIB),
        Device("TPUv4", 275e12, 32 * _GIB),
        Device("TPUv5e", 197e12, 16 * _GIB),
        Device("TPUv5p", 459e12, 95 * _GIB),
        Device("TPUv6e", 918e12, 32 * _GIB),
    )
}

# Patterns of `jax.Device.device_kind`, most specific first.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"H200", "H200"),
    (r"H100(?!.*PCIe)", "H100"),
    (r"A100.*80", "A100-80"),
    (r"A100", "A100-40"),
    (r"V100", "V100-32"),
    (r"TPU v6 lite|TPU v6e", "TPUv6e"),
    (r"TPU v5 lite|TPU v5e", "TPUv5e"),
    (r"TPU v5p|TPU v5$", "TPUv5p"),
    (r"TPU v4$", "TPUv4"),
)


# What `--precision` says of them, for training and inference alike.
PRECISIONS_MEAN = (
    "auto: bfloat16 on accelerators, float32 on CPUs; mixed: products of bfloat16 numbers, all "
    "else float32; fast: as auto, but mixed on CPUs that have instructions for it"
)


def precision_on(backend: str, name: str) -> str:
    """The precision that a setting means on JAX's backend: "auto" and "fast" depend on it."""
    if name not in ("auto", "fast"):
        return name
    if backend != "cpu":
        return "bfloat16"
    return "mixed" if name == "fast" and multiplies_bfloat16() else "float32"


@functools.cache
def multiplies_bfloat16(cpus: str = "/proc/cpuinfo") -> bool:
    """Whether this machine's CPU has instructions for products of bfloat16 numbers."""
    try:
        with open(cpus, encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)


def find(device_kind: str) -> Device | None:
    """The device with this `device_kind`, or None if its peak is unknown."""
    for pattern, name in _KINDS:
        if re.search(pattern, device_kind, flags=re.IGNORECASE):
            return DEVICES[name]
    return None


def peak_flops(device_kind: str) -> float | None:
    """Dense peak of half precision in FLOP/s, or None if it is unknown."""
    device = find(device_kind)
    return device.peak_flops if device else None


def keep_programs() -> None:
    """Caches compiled programs in the user's cache, unless JAX is configured to cache elsewhere:
    compiling takes longer than many training steps."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = user_cache() / "compiled" / machine(jax.default_backend())
        jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
        # An earlier stage of this process may have compiled without it, and JAX reads it once.
        compilation_cache.reset_cache()


def machine(backend: str) -> str:
    """Names what compiled programs depend on beside JAX's own cache keys: the CPU's instructions
    and the number of cores."""
    if backend != "cpu":
        return backend
    facts = [platform.machine(), platform.processor(), str(cores())]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n", 1)[0].splitlines()
        facts += [line for line in first if line.startswith(("model name", "flags", "Features"))]
    return "cpu-" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def flops_of(function: Callable[..., Any], *arguments: Any) -> float:
    """FLOPs of the matrix products of a function of arrays of these shapes, which nothing computes.

    They are counted in the traced program, because XLA counts a loop's body once, whatever its
    length. A multiplication and an addition are two FLOPs; all else is left out.
    """
    import jax

    return _counted(jax.make_jaxpr(function)(*arguments).jaxpr)


def _counted(program: Any) -> float:
    total = 0.0
    for operation in program.eqns:
        within = [_counted(inner) for inner in _inner(operation.params)]
        if operation.primitive.name == "dot_general":
            (contracted, _), _ = operation.params["dimension_numbers"]
            left = operation.invars[0].aval.shape
            size = math.prod(operation.outvars[0].aval.shape)
            total += 2.0 * size * math.prod(left[axis] for axis in contracted)
        elif operation.primitive.name == "cond":
            total += max(within)
        else:
            total += sum(within) * operation.params.get("length", 1)  # of a scan
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The programs that an operation calls."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            program = getattr(item, "jaxpr", item)
            if hasattr(program, "eqns"):
                yield program
