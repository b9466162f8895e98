"""Peak rates and memory of known devices, for MFU and for plans; precisions; compiled programs.

Dense peaks from the vendors' data sheets. For an unknown device no MFU is printed.

On CPUs, XLA's fusions of reductions through YNNPACK give wrong results where an array of [L, D] is
broadcast to [N, L, D] and summed over D beside other uses of it (tests/unit/test_hardware.py). So
this kind of fusion is taken from XLA's list; those of matrix products stay, without which a
training step takes a tenth longer. A value that the user gives to the flag stays.

Several devices on a CPU share one pool of threads, and a device holds a thread while it waits for
the others at a collective; with one thread a device, all may wait at different collectives for ever
(XLA ends the process after 40 s). So there are four threads a device.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import math
import os
import platform
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from qac_jax.processes import cores


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator: dense peak of its half precision, and memory."""

    name: str
    pattern: str  # of `jax.Device.device_kind`
    peak_flops: float
    memory_bytes: float
    precision: str = "bfloat16"  # what its peak is of, and what trains with it (`--precision`)


_GIB = 2.0**30

_KNOWN = (
    Device("V100-32", r"V100", 125e12, 32 * _GIB, "float16"),
    Device("A100-40", r"A100(?!.*80)", 312e12, 40 * _GIB),
    Device("A100-80", r"A100.*80", 312e12, 80 * _GIB),
    Device("H100", r"H100(?!.*PCIe)", 989e12, 80 * _GIB),
    Device("H200", r"H200", 989e12, 141 * _GIB),
    Device("TPUv4", r"TPU v4$", 275e12, 32 * _GIB),
    Device("TPUv5e", r"TPU v5 lite|TPU v5e", 197e12, 16 * _GIB),
    Device("TPUv5p", r"TPU v5p|TPU v5$", 459e12, 95 * _GIB),
    Device("TPUv6e", r"TPU v6 lite|TPU v6e", 918e12, 32 * _GIB),
)
DEVICES = {device.name: device for device in _KNOWN}


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
    with contextlib.suppress(OSError), open(cpus, encoding="utf-8", errors="replace") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)
    return False


def find(kind: str) -> Device | None:
    """The device with this `device_kind`, or None if its peak is unknown."""
    found = (d for d in DEVICES.values() if re.search(d.pattern, kind, flags=re.IGNORECASE))
    return next(found, None)


def keep_programs() -> None:
    """Caches compiled programs in the user's cache, unless JAX is configured to cache elsewhere:
    compiling takes longer than many training steps."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    from qac_jax.artifacts.hashing import user_cache  # not before a command needs it

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
        params = operation.params
        items = (i for v in params.values() for i in (v if isinstance(v, tuple | list) else (v,)))
        called = (getattr(item, "jaxpr", item) for item in items)
        within = [_counted(inner) for inner in called if hasattr(inner, "eqns")]
        if operation.primitive.name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = operation.invars[0].aval.shape
            size = math.prod(operation.outvars[0].aval.shape)
            if len(left) > 1:  # of one axis: a sum over rows (`layers.spread`)
                total += 2.0 * size * math.prod(left[axis] for axis in contracted)
        elif operation.primitive.name == "cond":
            total += max(within)
        else:
            total += sum(within) * params.get("length", 1)  # of a scan
    return total


YNN_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
_WITHOUT = "-LIBRARY_FUSION_TYPE_REDUCE"
# XLA ends a process that gives it a flag it does not know; these versions of jaxlib know this one.
KNOWN = ("0.10", "0.11", "0.12")
_ASKED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
THREADS = "PJRT_NPROC"
THREADS_A_DEVICE = 4


def set_flags(environment: MutableMapping[str, str], version: str) -> None:
    """Adds our flags to XLA_FLAGS for this version of jaxlib ("": there is none)."""
    given = environment.get("XLA_FLAGS", "")
    if YNN_FUSIONS in given or ".".join(version.split(".")[:2]) not in KNOWN:
        return
    environment["XLA_FLAGS"] = f"{given} {YNN_FUSIONS}={_WITHOUT}".strip()


def set_threads(environment: MutableMapping[str, str], processors: int) -> None:
    """Enough threads for the devices that XLA_FLAGS asks for on a CPU, if it asks for several."""
    asked = _ASKED.findall(environment.get("XLA_FLAGS", ""))
    devices = int(asked[-1]) if asked else 1
    if devices > 1 and THREADS not in environment:
        environment[THREADS] = str(max(processors, THREADS_A_DEVICE * devices))


def jaxlib_version() -> str:
    """The installed jaxlib's version, read from its file: importing it would take a second."""
    spec = importlib.util.find_spec("jaxlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "version.py"
        if file.exists() and (found := re.search(r'^_version = "([^"]+)"', file.read_text(), re.M)):
            return found[1]
    return ""


def set_for_this_process() -> None:
    """Both for whatever of JAX starts later in this process and in its children."""
    set_flags(os.environ, jaxlib_version())
    set_threads(os.environ, cores())
