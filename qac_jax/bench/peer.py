"""PyTorch's side of the benchmarks: on the GPU where ours is, as its users would run it there."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from qac_jax import hardware
from qac_jax.errors import UserError


def torch(threads: int = 0) -> Any:
    """PyTorch, with this number of threads (0: that of the cores).

    Called before JAX takes a GPU, of whose memory it leaves two fifths to PyTorch.
    """
    try:
        import torch
    except ImportError as error:
        raise missing(error) from error
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
    torch.manual_seed(0)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    return torch


def transformers() -> Any:
    """transformers."""
    try:
        import transformers
    except ImportError as error:
        raise missing(error) from error
    return transformers


def missing(error: ImportError) -> UserError:
    """What to install for the peer."""
    return UserError(
        f"the peer of this benchmark is missing ({error.name}); pip install 'qac_jax[bench]', or "
        "leave it out where there is a flag for that (--peer none, --no-peer)"
    )


def device() -> str:
    """ "cuda" where JAX computes on a GPU."""
    import jax

    if jax.default_backend() != "gpu":
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"this PyTorch ({torch.__version__}) sees no GPU and JAX does, so the sides cannot be "
            "compared; install PyTorch for CUDA, or leave the peer out"
        )
    return "cuda"


def halved(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Autocast where our products are of half precision (`--precision`)."""
    import jax
    import torch

    name = hardware.precision_on(jax.default_backend(), precision)
    if name == "float32":
        return contextlib.nullcontext()
    kind = torch.float16 if name == "float16" else torch.bfloat16
    return torch.autocast(device(), kind)


def compiled(layers: Any) -> None:
    """On a GPU: each layer through `torch.compile`."""
    if device() == "cuda":
        for layer in layers:
            layer.compile(dynamic=False)


def wait() -> None:
    """Until the GPU is done."""
    if device() == "cuda":
        import torch

        torch.cuda.synchronize()
