"""The common part of benchmarks: PyTorch on JAX's device, the timing, real passages."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from qac_jax import extras, hardware
from qac_jax.errors import UserError
from qac_jax.processes import cores


def package(name: str) -> Any:
    """A package of the peer."""
    return extras.load(name, "bench", "the peer of this benchmark")


def torch() -> Any:
    """PyTorch on all cores. Called before JAX takes a GPU, of whose memory it leaves two fifths."""
    torch = package("torch")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
    torch.manual_seed(0)
    torch.set_num_threads(cores())
    return torch


def device() -> str:
    """ "cuda" where JAX computes on a GPU."""
    import jax

    if jax.default_backend() != "gpu":
        return "cpu"
    torch = package("torch")
    if not torch.cuda.is_available():
        raise UserError("PyTorch sees no GPU and JAX does; install PyTorch for CUDA")
    return "cuda"


def halved(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Autocast where our products are of half precision (`--precision`)."""
    import jax

    name = hardware.precision_on(jax.default_backend(), precision)
    if name in ("float32", "int8"):
        return contextlib.nullcontext()
    torch = package("torch")
    return torch.autocast(device(), torch.float16 if name == "float16" else torch.bfloat16)


def compared(
    sides: Mapping[str, Callable[[], Any]],
    count: int,
    unit: str,
    repetitions: int,
    *,
    before: int = 0,
) -> dict[str, Any]:
    """Rates of the sides, which take turns, and the ratio of the first to the fastest peer.

    The first call of a side, which compiles, is a figure of its own. `before`: calls of each turn
    that are not timed.
    """
    import jax

    def timed(call: Callable[[], Any]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    first = {f"{name}_first_call_seconds": timed(call) for name, call in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, call in sides.items():
            for _ in range(before):
                call()
            seconds[name].append(timed(call))
    rates = {name: count / statistics.median(times) for name, times in seconds.items()}
    figures: dict[str, Any] = {f"{name}_{unit}_per_second": rate for name, rate in rates.items()}
    figures["unit"] = unit
    ours, *peers = sides
    if peers:
        best = max(peers, key=lambda name: rates[name])
        ratios = [b / a for a, b in zip(seconds[ours], seconds[best], strict=True)]
        figures["ratio"] = rates[ours] / rates[best]
        figures["ratio_range"] = f"{min(ratios):.2f} to {max(ratios):.2f}"
        figures["best_peer"] = best
    return figures | first | {"device": jax.devices()[0].device_kind, "cores": cores()}


def passages(packages: str, count: int) -> list[str]:
    """Texts of the documentation of Python packages, evenly spread."""
    from qac_jax.formats import documents

    texts: list[str] = []
    for document in documents.read("python_docs", packages):
        texts += [f"{p.title} {p.text}".strip() for p in document.passages]
        texts += [s.text for s in document.sections if s.text.strip()]
    wanted = min(count, len(texts))
    return [texts[i * len(texts) // wanted] for i in range(wanted)]
