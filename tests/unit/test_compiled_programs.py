"""Compiled programs stay between runs, each where it can be run again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from qac_jax import hardware


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's cache folder, and JAX as one finds it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = {
        name: getattr(jax.config, name)
        for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    }
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def programs(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("jit_product-*-cache") if path.is_file()}


def test_also_where_an_earlier_stage_compiled_without(home: Path) -> None:
    def product(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x) + x

    jax.jit(product)(jnp.ones((3, 3))).block_until_ready()
    assert not programs(home)
    hardware.keep_programs()
    first = jax.jit(product)(jnp.ones((9, 9)))
    kept = programs(home)
    assert [path.parent.name for path in kept] == [hardware.machine("cpu")]
    jax.clear_caches()
    again = jax.jit(product)(jnp.ones((9, 9)))
    assert programs(home) == kept  # read, not made anew
    assert (first == again).all()


def test_where_jax_was_told_it_stays(home: Path, tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "told"))
    hardware.keep_programs()
    jax.jit(lambda x: x * 3)(jnp.ones(5)).block_until_ready()
    assert list((tmp_path / "told").glob("*-cache")) and not (home / "qac_jax").exists()


def test_a_folder_for_every_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for cores in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)))
        found.add(hardware.machine("cpu"))
    assert len(found) == 3 and all(name.startswith("cpu-") for name in found)
    assert hardware.machine("gpu") == "gpu"
