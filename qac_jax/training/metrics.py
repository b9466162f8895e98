"""The figures of a run, and where they go: log, `metrics.jsonl`, TensorBoard."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from qac_jax import extras, hardware
from qac_jax.data.loader import Loader
from qac_jax.errors import UserError
from qac_jax.progress import human, human_seconds
from qac_jax.training import mesh as meshes
from qac_jax.training import step as steps
from qac_jax.training.mesh import announce, is_first
from qac_jax.training.step import Engine, State


Figures = dict[str, float]

# Folders of a run and of its artefact.
PROFILE, TENSORBOARD = "profile", "tensorboard"


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
            # FLOPs are those of full rows; only tokens that are not padding count as useful.
            step_flops *= self.tokens * parts / (steps * max(padded_tokens(spec), 1))
        used = mfu(step_flops, seconds / steps, list(mesh.devices.flat))
        return figures if used is None else {**figures, "mfu": used}


def mfu(step_flops: float | None, seconds: float, devices: Sequence[Any]) -> float | None:
    """Model FLOPs per second over the peak of all devices; None where either is unknown."""
    device = hardware.find(devices[0].device_kind)
    if step_flops is None or device is None or seconds <= 0:
        return None
    return step_flops / seconds / (device.peak_flops * len(devices))


def tokens_of(batch: Mapping[str, np.ndarray]) -> int:
    """Tokens of a batch that are not padding."""
    return int(sum(x.sum() for name, x in batch.items() if name.endswith("_length")))


def padded_tokens(spec: Mapping[str, Any]) -> int:
    """Tokens in a batch of these shapes, padding included."""
    return sum(math.prod(x.shape) for name, x in spec.items() if f"{name}_length" in spec)


def finite_means(engine: Engine, state: State, since_log: list[Any], step: int) -> Figures:
    """The mean metrics of the last steps; raises UserError if too many were not finite."""
    records = jax.device_get(since_log)
    skipped, first = int(jax.device_get(state.skipped)), step - len(records) + 1
    finite = [math.isfinite(r["loss"]) and math.isfinite(r["grad_norm"]) for r in records]
    overflows = [bool(steps.overflows(r["loss"], r["grad_norm"], _scale(r))) for r in records]
    if skipped > engine.max_skips:
        lost = zip(finite, overflows, strict=True)
        bad = [first + i for i, (good, over) in enumerate(lost) if not good and not over]
        where = f"step {bad[0]}, between steps {first} and {step}" if bad else f"step {step}"
        half = "; a model whose numbers exceed 65504 needs --precision float32"
        raise UserError(
            f"the loss or its gradient is not finite at {where} ({skipped} such steps, "
            f"max_skips={engine.max_skips}); lower the learning rate, lengthen the warm-up, or "
            "allow more skipped steps" + (half if engine.scales else "")
        )
    means = _means([r for r, good in zip(records, finite, strict=True) if good])
    if engine.scales and records:
        means[steps.LOSS_SCALE] = float(_scale(records[-1]))
    counts = {"skipped": skipped, "overflows": sum(overflows)}
    return {**means, **{name: count for name, count in counts.items() if count}}


def _scale(record: Mapping[str, Any]) -> Any:
    return record.get(steps.LOSS_SCALE, steps.LEAST)


def _means(records: Sequence[Mapping[str, Any]]) -> Figures:
    return {n: float(np.mean([r[n] for r in records])) for n in (records[0] if records else ())}


# Where figures go.


def log_line(step: int, total: int, figures: Mapping[str, float]) -> str:
    rates = ("step_ms", "examples_per_second", "tokens_per_second", "mfu", "skipped")
    last = ("grad_norm", "learning_rate")
    order = sorted(figures, key=lambda name: (name != "loss", name in last))
    parts = [
        f"step {step}/{total} ({step / total:.0%})",
        shown({name: figures[name] for name in order if name not in rates}),
        f"{figures['step_ms']:.1f} ms",
        f"{human(figures['examples_per_second'])} examples/s",
        f"{human(figures['tokens_per_second'])} tokens/s",
    ]
    if figures.get("skipped"):
        parts.append(f"{figures['skipped']:.0f} step(s) skipped")
    if "mfu" in figures:
        parts.append(f"MFU {figures['mfu']:.1%}")
    left = (total - step) * figures["step_ms"] / 1e3
    return "  ".join([*parts, f"ETA {human_seconds(left)}"])


def shown(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


class Journal:
    """`metrics.jsonl`, one object a line, and TensorBoard's files where wanted: of a run of this
    name that begins behind `step`. The first of several processes writes them.

    What was logged of later steps, which a resumed run does again, goes (TensorBoard hides it).
    """

    def __init__(self, folder: epath.Path, step: int, *, tensorboard: bool = False, name: str = ""):
        self._lines: IO[str] | None = None
        self._board: Any = None
        if not is_first():
            return
        path = folder / "metrics.jsonl"
        forget_after(path, step)
        self._lines = path.open("a")
        if tensorboard:
            library = extras.load("tensorboardX", "papers", "--tensorboard")
            # Its own names have whole seconds, so a run that soon continues would lose some.
            self._board = library.SummaryWriter(
                os.fspath(folder / TENSORBOARD / name),
                filename_suffix=f".{time.time_ns()}",
                purge_step=step + 1,
            )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes at once, so that a killed run keeps what it had measured."""
        numbers = {name: float(value) for name, value in figures.items()}
        if self._lines is not None:
            self._lines.write(json.dumps({"step": step, **numbers}) + "\n")
            self._lines.flush()
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()

    def close(self) -> None:
        for file in filter(None, (self._lines, self._board)):
            file.close()


def forget_after(path: epath.Path, step: int) -> None:
    """Removes the lines of steps after `step`."""
    kept = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # the last line of a killed run may be incomplete
    path.write_text("".join(kept))


# Measured beside the training.


class Validation:
    """The mean of the metrics over the same batches every time."""

    def __init__(self, engine: Engine, data: Loader, limit: int = 0):
        self._engine, self._data, self._start = engine, data, data.state()
        spec = meshes.whole_spec(data.spec, engine.mesh)
        size = next(iter(spec.values())).shape[0]
        self._count = min(data.examples_per_epoch // size, limit or data.examples_per_epoch)
        if not self._count:
            raise UserError(
                f"the validation set has {data.examples_per_epoch} examples, less than one batch "
                f"of {size}; give more examples or a smaller validation batch size"
            )
        self._measure = engine.compile_measure(spec)

    def __call__(self, state: State) -> Figures:
        self._data.restore(self._start)
        batches = (meshes.place(next(self._data), self._engine.mesh) for _ in range(self._count))
        records = [self._measure(state.variables, batch) for batch in batches]
        return {f"validation/{name}": v for name, v in _means(jax.device_get(records)).items()}


class Profile:
    """JAX's trace of a window of steps: "10:15" are the five steps after step 10."""

    def __init__(self, window: str, folder: epath.Path, total: int):
        self._folder, self._runs = folder, False
        match = re.fullmatch(r"(\d+):(\d+)", window or "0:0")
        self._first, self._last = (int(match[1]), int(match[2])) if match else (0, 0)
        if window and not self._first < self._last <= total:
            raise UserError(
                f"profile={window!r} is not a window of steps of this run; expected FIRST:LAST "
                f"such as 10:15, with LAST at most {total}"
            )

    def begin(self, step: int, state: Any) -> None:
        """Before the step after `step`."""
        if self._last and step == self._first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(os.fspath(self._folder))
            self._runs = True

    def end(self, step: int, state: Any) -> None:
        """After `step`; a run that resumed within the window has recorded nothing."""
        if self._runs and step == self._last:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self._runs = False
            announce(f"profiled steps {self._first} to {self._last}: {how_to_open(self._folder)}")


def how_to_open(folder: os.PathLike[str] | str) -> str:
    return (
        f"the trace is in {folder}; look at it with: xprof --logdir {folder} "
        "(pip install 'qac_jax[profile]'), or open its *.trace.json.gz at ui.perfetto.dev"
    )
