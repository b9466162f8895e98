"""Known devices; XLA's faulty fusions are off, and what they made wrong is right."""

import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np

from qac_jax import hardware
from qac_jax.processes import cores


# The suite compiles without optimisations, to save time; these programs are compiled with them.
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def compiled(function: Any) -> Any:
    return jax.jit(function, compiler_options=OPTIMISED)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_sums_of_products_with_a_broadcast_array() -> None:
    for shape in [(5, 128, 128), (64, 13, 48)]:

        def added(x: Any, y: Any) -> Any:
            return y + (x * y).sum(-1, keepdims=True)

        x, y = draw(*shape[1:]), draw(*shape)
        expected = added(x.astype(float), y.astype(float))
        np.testing.assert_allclose(compiled(added)(x, y), expected, atol=1e-4)


def flags(given: str | None, version: str) -> str | None:
    environment = {} if given is None else {"XLA_FLAGS": given}
    hardware.set_flags(environment, version)
    return environment.get("XLA_FLAGS")


def test_the_flag_is_added_once_and_the_users_value_stays() -> None:
    ours = f"{hardware.YNN_FUSIONS}=-LIBRARY_FUSION_TYPE_REDUCE"
    assert flags(None, "0.10.2") == ours
    assert flags("--xla_a=1", "0.12.0.1") == f"--xla_a=1 {ours}"
    for given in (ours, f"{hardware.YNN_FUSIONS}= --xla_a=1"):
        assert flags(given, "0.11.2") == given
    for version in ("", "0.9.2", "0.13.0", "1.0"):  # which may not know the flag
        assert flags(None, version) is None and flags("--xla_a=1", version) == "--xla_a=1"


def test_importing_the_package_sets_both_before_jax_starts() -> None:
    assert hardware.jaxlib_version() == jax.lib.__version__
    code = (
        "import os, sys, qac_jax; print('jax' in sys.modules, os.environ.get('PJRT_NPROC'),"
        " os.environ.get('XLA_FLAGS'))"
    )
    given = "--xla_force_host_platform_device_count=64"
    environment = {name: x for name, x in os.environ.items() if name != hardware.THREADS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"XLA_FLAGS": given},
        capture_output=True,
        text=True,
        check=True,
    )
    known = str(flags(given, jax.lib.__version__)).split()
    assert done.stdout.split() == ["False", str(max(cores(), 4 * 64)), *known]


def test_devices_are_known_by_what_jax_calls_them() -> None:
    for kind, name in (
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("TPU v4", "TPUv4"),
        ("TPU v5 lite", "TPUv5e"),
    ):
        assert hardware.find(kind) is hardware.DEVICES[name]
    assert hardware.find("NVIDIA GeForce RTX 4090") is None
