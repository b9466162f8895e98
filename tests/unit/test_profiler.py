"""Profiles: windows, kernels with their own times, where operations come from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from qac_jax.errors import UserError
from qac_jax.training import profiler


def test_windows() -> None:
    assert profiler.Window.parse("10:15") == profiler.Window(10, 15)
    assert not profiler.Window.parse("").last
    for text in ("5", "15:10", "3:3", "a:b"):
        with pytest.raises(UserError, match=f"profile='{text}'"):
            profiler.Window.parse(text)


def test_a_window_after_the_end_is_refused() -> None:
    profiler.Window(3, 5).check(5)
    with pytest.raises(UserError, match="LAST at most 4"):
        profiler.Window(3, 5).check(4)


def event(name: str, start: float, duration: float) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, stats=[("hlo_op", name)], start_ns=start, duration_ns=duration
    )


def test_a_loop_does_not_count_its_body() -> None:
    events = [event("while", 0, 10e9), event("dot.1", 1e9, 2e9), event("dot.2", 4e9, 5e9)]
    line = SimpleNamespace(name="thread", events=events)
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/host:CPU", lines=[line])])
    origins = {"dot.1": "layers/*/dot", "dot.2": "layers/*/dot"}
    found = profiler.kernels(profile, origins)
    assert found == [profiler.Kernel("layers/*/dot", 2, 7.0), profiler.Kernel("while", 1, 3.0)]
    table = profiler.table(found, steps=2)
    assert "70.0%" in table and "3500.000" in table


def test_a_gpu_has_streams() -> None:
    lines = [
        SimpleNamespace(name="Stream #20(Compute)", events=[event("gemm", 0, 1e9)]),
        SimpleNamespace(name="XLA Modules", events=[event("jit_step", 0, 9e9)]),
    ]
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/device:GPU:0", lines=lines)])
    assert [kernel.name for kernel in profiler.kernels(profile, {})] == ["gemm"]


def test_a_kernel_that_begins_before_the_last_one_ends_is_not_inside_of_it() -> None:
    events = [event("gemm", 0, 2e9), event("norm", 1.75e9, 3e9), event("gemm", 4.75e9, 2e9)]
    stream = SimpleNamespace(name="Stream #14(Compute)", events=events)
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/device:GPU:0", lines=[stream])])
    found = profiler.kernels(profile, {})
    assert found == [profiler.Kernel("gemm", 2, 4.0), profiler.Kernel("norm", 1, 3.0)]


def test_kernels_of_a_cuda_graph_are_found_by_their_own_names() -> None:
    graph = event("loop_multiply_fusion_39", 0, 1e9)
    graph.stats = [("hlo_op", "command_buffer_295")]
    stream = SimpleNamespace(name="Stream #14(Compute)", events=[graph])
    profile = SimpleNamespace(planes=[SimpleNamespace(name="/device:GPU:0", lines=[stream])])
    found = profiler.kernels(profile, {"loop_multiply_fusion.39": "Bert/mlp/mul"})
    assert [kernel.name for kernel in found] == ["Bert/mlp/mul"]


def test_origins_are_read_from_the_program() -> None:
    text = """
  %fusion.3 = f32[2]{0} fusion(%p), metadata={op_name="jit(step)/jit(main)/jvp(Bert)/layers/3/up"}
  ROOT dot.1 = f32[2]{0} dot(%p, %q), metadata={op_name="jit(step)/transpose(jvp(Bert))/mlp/up"}
"""
    assert profiler.origins(text) == {
        "fusion.3": "Bert/layers/*/up",
        "dot.1": "back Bert/mlp/up",
    }


def test_a_real_recording(tmp_path: Path) -> None:
    def product(x: jax.Array) -> jax.Array:
        with jax.named_scope("scores"):
            return x @ x

    compiled = jax.jit(product).lower(jnp.ones((256, 256))).compile()
    profiler.start(tmp_path)
    for _ in range(3):
        compiled(jnp.ones((256, 256))).block_until_ready()
    found = profiler.stop(tmp_path, compiled)
    assert found and all(kernel.seconds > 0 for kernel in found[:1])
    assert any("scores" in kernel.name for kernel in found), found
    assert profiler.read(tmp_path) == found, "names are kept with the trace"
    assert str(tmp_path) in profiler.how_to_open(tmp_path)
    assert list(tmp_path.rglob("*.trace.json.gz"))
    with pytest.raises(UserError, match="holds no"):
        profiler.read(tmp_path / "elsewhere")
