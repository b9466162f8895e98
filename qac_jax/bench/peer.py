"""The other side of a benchmark, on the GPU where ours is, and what all benchmarks share."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from qac_jax import hardware
from qac_jax.errors import UserError


def torch(threads: int = 0) -> Any:
    """PyTorch, with this number of threads (0: that of the cores).

    Called before JAX takes a GPU, of whose memory it leaves two fifths to PyTorch.
    """
    torch = package("torch")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
    torch.manual_seed(0)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    return torch


def package(name: str) -> Any:
    """A package of the peer."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"the peer of this benchmark is missing ({error.name}); pip install 'qac_jax[bench]', "
            "or leave it out where there is a flag for that (--peer none, --no-peer, --systems)"
        ) from error


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


def alternated(
    sides: Mapping[str, Callable[[], Any]], repetitions: int, profile: str = ""
) -> dict[str, list[float]]:
    """Seconds of each call; the sides take turns, after a first call that is not measured.

    `profile`: a folder to record one more call of the first side in.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for _ in range(repetitions):
        for name, call in sides.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    if profile:
        import jax

        from qac_jax.training import metrics

        with jax.profiler.trace(profile):
            next(iter(sides.values()))()
        print(metrics.how_to_open(profile))
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Of the medians, how often ours is done while theirs is; the range over repetitions."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "ratio_range": f"{min(ratios):.2f} to {max(ratios):.2f}",
    }


def passages(corpus: str, format: str, count: int) -> list[str]:
    """Texts of a corpus, evenly spread."""
    from qac_jax.formats import documents

    texts: list[str] = []
    for document in documents.read(format, corpus, skip_bad=None):
        texts += [f"{p.title} {p.text}".strip() for p in document.passages]
        texts += [s.text for s in document.sections if s.text.strip()]
    if not texts:
        raise UserError(f"{corpus} holds no passages in the format {format!r}")
    wanted = min(count, len(texts))
    return [texts[i * len(texts) // wanted] for i in range(wanted)]
