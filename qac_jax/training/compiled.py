"""Compiled programs kept between runs: compiling takes longer than many a training step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

from qac_jax.hashing import user_cache


def keep_between_runs() -> None:
    """Compiled programs are kept, unless JAX is told where itself."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = user_cache() / "compiled" / _machine(jax.default_backend())
        jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
        # An earlier stage of this process has compiled without, and JAX looks only once.
        compilation_cache.reset_cache()


def _machine(backend: str) -> str:
    """What compiled programs are tied to and JAX's keys for them do not say: a CPU's
    instructions and how many cores share the work."""
    if backend != "cpu":
        return backend
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = [platform.machine(), platform.processor(), str(cores)]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        first = file.read().split("\n\n", 1)[0].splitlines()
        told += [line for line in first if line.startswith(("model name", "flags", "Features"))]
    return "cpu-" + hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
