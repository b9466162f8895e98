"""What XLA must find in the environment before JAX starts; importing the package sets it.

On CPUs, XLA's fusions of reductions through YNNPACK give wrong results where an array of [L, D] is
broadcast to [N, L, D] and summed over D beside other uses of it: what lies beyond the first 32,768
numbers is wrong (tests/unit/test_xla_flags.py holds the case). So this
kind of fusion is taken from XLA's list; those of matrix products stay, without which a training
step takes a tenth longer. A value that the user gives to the flag stays.

Several devices on a CPU share one pool of threads, and a device holds a thread while it waits for
the others at a collective. XLA runs independent collectives of a program in any order and at the
same time; with one thread a device, all of them may wait at collectives that the others have not
come to, for ever (XLA ends the process after 40 s). So there are four threads a device.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from qac_jax.processes import cores


YNN_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
_WITHOUT = "-LIBRARY_FUSION_TYPE_REDUCE"
# XLA ends a process that gives it a flag it does not know. These versions of jaxlib know this one:
# its name is registered in the libraries of 0.10.2, 0.11.0, 0.11.2 and 0.12.0.1.
KNOWN = ("0.10", "0.11", "0.12")
DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
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
    asked = DEVICES.findall(environment.get("XLA_FLAGS", ""))
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
