"""Compiling for a GPU that is not here.

XLA's compiler for NVIDIA GPUs runs on any machine that has JAX's plugin for CUDA; a description
of the card stands in for it. Products are left to cuBLAS and nothing is tried out, so the choice of
kernels is the usual one, not the fastest that a card would have found.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from typing import Any

from qac_jax.errors import UserError


# What XLA reads off a card, as its own text format has it.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_enable_command_buffer="
)
DEVICES = {"h100": _H100}


def devices(name: str) -> list[Any]:
    """Such a device, for `meshes.make_mesh`; before any other use of JAX in this process."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if not any(importlib.util.find_spec(plugin) for plugin in plugins):
        raise UserError(
            f"compiling for {name} needs JAX's plugin for CUDA, though no GPU; "
            "pip install 'qac_jax[cuda]'"
        )
    # Without a card the plugin refuses to start, and JAX to lower cuDNN's attention.
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"

    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    from jax.experimental import topologies

    cudnn.check_cudnn_version = lambda: 91000
    cudnn.check_compute_capability = lambda _: True
    with contextlib.suppress(ImportError):  # from JAX 0.11 on: Pallas asks for the card too
        cards: Any = importlib.import_module("jax._src.pallas.triton.gpu_info")
        card = cards.get_gpu_info_from_version(cards.GpuVersion[name.upper()])
        cards.get_gpu_info = lambda: card
    jax.devices()
    described = topologies.get_topology_desc(
        name, "cuda", target_config=DEVICES[name], topology="1x1x1"
    )
    return list(described.devices)
