"""A cache of compiled programs on disk: compiling takes longer than many training steps."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

from qac_jax.hashing import user_cache
from qac_jax.processes import cores


def keep_between_runs() -> None:
    """Caches compiled programs in the user's cache, unless JAX is configured to cache elsewhere."""
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
