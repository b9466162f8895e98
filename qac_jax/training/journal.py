"""Logging of a run: rates, log lines, the metrics file."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jax.sharding import Mesh

from qac_jax.progress import Metrics, Mirror, human, human_seconds, say
from qac_jax.training import mesh as meshes
from qac_jax.training import report
from qac_jax.training.distributed import is_first


Figures = dict[str, float]


class Clock:
    """Time and tokens since the last log, training only."""

    def __init__(self, step: int):
        self.restart(step)

    def restart(self, step: int) -> None:
        self._step, self.tokens, self._began, self._lost = step, 0, time.monotonic(), 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside the context is not counted."""
        began = time.monotonic()
        yield
        self._lost += time.monotonic() - began

    def rates(self, step: int, spec: Any, step_flops: float | None, mesh: Mesh) -> Figures:
        """Speed since the last log."""
        seconds = max(time.monotonic() - self._began - self._lost, 1e-9)
        steps = max(step - self._step, 1)
        size = next(iter(spec.values())).shape[0]
        _, parts = meshes.my_part(mesh)
        figures = {
            "step_ms": seconds / steps * 1e3,
            "examples_per_second": size * steps / seconds,
            # The parts of other processes have about as many tokens as this one's.
            "tokens_per_second": self.tokens * parts / seconds,
        }
        if step_flops is not None:
            # The formula is for full rows; only tokens that are not padding count as useful.
            step_flops *= self.tokens * parts / (steps * max(padded_tokens(spec), 1))
        used = report.mfu(step_flops, seconds / steps, list(mesh.devices.flat))
        return figures if used is None else {**figures, "mfu": used}


def tokens_of(batch: Mapping[str, np.ndarray]) -> int:
    """Tokens of a batch that are not padding."""
    return int(sum(x.sum() for name, x in batch.items() if name.endswith("_length")))


def padded_tokens(spec: Mapping[str, Any]) -> int:
    """Tokens in a batch of these shapes, padding included."""
    return sum(math.prod(x.shape) for name, x in spec.items() if f"{name}_length" in spec)


def shown(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


def log_line(step: int, total: int, figures: Mapping[str, float]) -> str:
    """One line of figures for the terminal."""
    speed = ("step_ms", "examples_per_second", "tokens_per_second", "mfu", "skipped")
    last = ("grad_norm", "learning_rate", *speed)
    first = {"loss": figures["loss"]} if "loss" in figures else {}
    measures = {name: value for name, value in figures.items() if name not in last}
    rest = {name: figures[name] for name in last[:2] if name in figures}
    left = (total - step) * figures["step_ms"] / 1e3
    parts = [
        f"step {step}/{total} ({step / total:.0%})",
        shown({**first, **measures, **rest}),
        f"{figures['step_ms']:.1f} ms",
        f"{human(figures['examples_per_second'])} examples/s",
        f"{human(figures['tokens_per_second'])} tokens/s",
    ]
    if figures.get("skipped"):
        parts.append(f"{figures['skipped']:.0f} step(s) skipped")
    if "mfu" in figures:
        parts.append(f"MFU {figures['mfu']:.1%}")
    return "  ".join([*parts, f"ETA {human_seconds(left)}"])


def announce(line: str) -> None:
    """Prints a line, from the first process only."""
    if is_first():
        say(line)


def means(records: list[Mapping[str, Any]]) -> Figures:
    """The mean of every figure over the records."""
    if not records:
        return {}
    return {name: float(np.mean([figures[name] for figures in records])) for name in records[0]}


def metrics_file(path: epath.Path, mirrors: Sequence[Mirror] = ()) -> Metrics:
    """The run's metrics file; processes but the first write to /dev/null."""
    return Metrics(path if is_first() else epath.Path("/dev/null"), mirrors=mirrors)


def forget_after(path: epath.Path, step: int) -> None:
    """Removes the lines of steps after `step`, which a resumed run will log again."""
    if not (is_first() and path.exists()):
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # the last line of a killed run may be incomplete
    path.write_text("".join(kept))
