"""What a run measures of itself, and where the figures go: log lines, `metrics.jsonl`, trackers."""

import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from qac_jax import hardware
from qac_jax.data.loader import Loader
from qac_jax.errors import UserError
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig, backbone_of
from qac_jax.objectives import towers
from qac_jax.objectives.objective import Objective, Variables
from qac_jax.progress import Metrics, Mirror, human, human_seconds
from qac_jax.training import mesh as meshes
from qac_jax.training import step as steps
from qac_jax.training.mesh import announce, is_first
from qac_jax.training.options import PROBE, Monitoring
from qac_jax.training.step import Engine, State


Figures = dict[str, float]

# In place of the settings, for all runs of a shell.
TENSORBOARD_DIR, WANDB = "QAC_TENSORBOARD", "WANDB_PROJECT"
# The folder of a profile, in a run's folder and in its artefact.
PROFILE, TENSORBOARD = "profile", "tensorboard"
_TOP = 10


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
    skipped = int(jax.device_get(state.skipped))
    overflows = [bool(_overflows(metrics)) for metrics in records]
    if skipped > engine.max_skips:
        first = step - len(records) + 1
        bad = [
            first + i
            for i, metrics in enumerate(records)
            if not _is_finite(metrics) and not overflows[i]
        ]
        where = f"step {bad[0]}, between steps {first} and {step}" if bad else f"step {step}"
        half = "; a model whose numbers exceed 65504 needs --precision float32"
        raise UserError(
            f"the loss or its gradient is not finite at {where} ({skipped} such steps, "
            f"max_skips={engine.max_skips}); lower the learning rate, lengthen the warm-up, or "
            "allow more skipped steps" + (half if engine.scales else "")
        )
    means = _means([metrics for metrics in records if _is_finite(metrics)])
    counts = {"skipped": skipped, "overflows": sum(overflows)}
    if engine.scales and records:
        means[steps.LOSS_SCALE] = float(records[-1][steps.LOSS_SCALE])
    return {**means, **{name: count for name, count in counts.items() if count}}


def _overflows(metrics: Mapping[str, Any]) -> Any:
    scale = metrics.get(steps.LOSS_SCALE, steps.LEAST)
    return steps.overflows(metrics["loss"], metrics["grad_norm"], scale)


def _is_finite(metrics: Mapping[str, Any]) -> bool:
    return math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])


def _means(records: Sequence[Mapping[str, Any]]) -> Figures:
    """The mean of every figure over the records."""
    if not records:
        return {}
    return {name: float(np.mean([figures[name] for figures in records])) for name in records[0]}


# Where figures go.


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


def shown(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


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


def trackers(monitoring: Monitoring, name: str, folder: epath.Path) -> list[Mirror]:
    """TensorBoard and Weights & Biases for a run of this name, in the first process of several.

    They are opened before anything is compiled, so that what is missing is said at once.
    """
    if not is_first():
        return []
    mirrors: list[Mirror] = []
    boards = [os.environ.get(TENSORBOARD_DIR), monitoring.tensorboard and folder / TENSORBOARD]
    mirrors += [_TensorBoard(os.fspath(board), name) for board in boards if board]
    if project := monitoring.wandb or os.environ.get(WANDB, ""):
        mirrors.append(_Wandb(project, name))
    return mirrors


class _TensorBoard:
    """A run in a folder of TensorBoard's event files.

    Where a run continues, what earlier files have from its first step on is hidden.
    """

    def __init__(self, folder: str, name: str):
        from tensorboardX import SummaryWriter

        # Its own names have whole seconds, so a run that soon continues would write over itself.
        unique = {"logdir": f"{folder}/{name}", "filename_suffix": f".{time.time_ns()}"}
        self._make = lambda step: SummaryWriter(**unique, purge_step=step)
        self._writer: Any = None
        try:
            epath.Path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"tensorboard={folder!r} cannot be written to ({error.strerror or error}); give a "
                "folder for TensorBoard's files"
            ) from error

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._writer = self._writer or self._make(step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    """A run of Weights & Biases, the same one when training continues."""

    def __init__(self, project: str, name: str):
        try:
            library: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(
                f"wandb={project!r} needs the package wandb, which is not installed; pip install "
                "wandb, or leave the setting out"
            ) from error
        identity = hashlib.sha256(f"{project}/{os.path.abspath(name)}".encode()).hexdigest()[:16]
        try:
            self._run = library.init(project=project, name=name, id=identity, resume="allow")
        except Exception as error:  # its own classes, which change with its version
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"wandb={project!r} cannot be opened ({reason}); run `wandb login`, or set "
                "WANDB_MODE=offline, or leave the setting out"
            ) from error

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


# Measured beside the training.


class Validation:
    """The mean of the metrics over the same batches every time."""

    def __init__(self, engine: Engine, data: Loader, limit: int = 0):
        self._engine, self._data, self._start = engine, data, data.state()
        spec = meshes.whole_spec(data.spec, engine.mesh)
        size = next(iter(spec.values())).shape[0]
        self._count = data.examples_per_epoch // size
        if limit:
            self._count = min(self._count, limit)
        if not self._count:
            raise UserError(
                f"the validation set has {data.examples_per_epoch} examples, less than one batch "
                f"of {size}; give more examples or a smaller validation batch size"
            )
        self._measure = engine.compile_measure(spec)

    def __call__(self, state: State) -> Figures:
        variables = _averaged(self._engine, state)
        self._data.restore(self._start)
        records = []
        for _ in range(self._count):
            batch = meshes.place(next(self._data), self._engine.mesh)
            records.append(self._measure(variables, batch))
        return {f"validation/{name}": v for name, v in _means(jax.device_get(records)).items()}


class Probe:
    """How well the encoder finds the passages of held-out questions, meanwhile: MRR, and the share
    of questions whose passage is among the first ten.

    Candidates are the passages of all questions of the probe, so its MRR is far higher than that of
    a search in a corpus; what counts is where it stops rising.
    """

    def __init__(self, engine: Engine, data: Loader, monitoring: Monitoring):
        self._engine, self._data, self._start = engine, data, data.state()
        spec = meshes.whole_spec(data.spec, engine.mesh)
        size = next(iter(spec.values())).shape[0]
        self._batches = max(min(data.examples_per_epoch, monitoring.probe_questions) // size, 1)

        def encode(variables: Variables, batch: Any) -> Any:
            found = vectors(engine.objective, variables, batch, monitoring.probe_pooling)
            return *found, batch["passages"][:, 0]

        encoded = jax.jit(
            encode,
            in_shardings=(engine.shardings.variables, meshes.batch_sharding(engine.mesh)),
            out_shardings=meshes.replicated(engine.mesh),
        )
        with meshes.use(engine.mesh, engine.rules):
            self._encode = encoded.lower(engine.abstract.variables, spec).compile()

    def __call__(self, state: State) -> Figures:
        variables = _averaged(self._engine, state)
        self._data.restore(self._start)
        parts = []
        for _ in range(self._batches):
            batch = meshes.place(next(self._data), self._engine.mesh)
            parts.append(jax.device_get(self._encode(variables, batch)))
        found = ranks(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        return {
            f"{PROBE}mrr": float(np.mean(1 / found)),
            f"{PROBE}recall@{_TOP}": float(np.mean(found <= _TOP)),
        }


def _averaged(engine: Engine, state: State) -> Variables:
    """The variables with the EMA of the parameters, where the run has one."""
    return {**state.variables, "params": state.ema} if engine.ema else state.variables


def vectors(
    objective: Objective, variables: Variables, batch: Any, pooling: str
) -> tuple[jax.Array, jax.Array]:
    """Queries [B, D] and passages [B, D] by the encoder that would be exported now.

    A dual encoder has its own pooling; of another encoder's vectors the cosine is taken.
    """
    module, params = objective.export(variables)
    if isinstance(module, DualEncoder):
        model = module
    elif (inside := backbone_of(module, params)) is not None:
        config = DualEncoderConfig(inside[0].with_parts(), pooling=pooling, normalize=True)
        model, params = towers.initialised(DualEncoder(config), module, params)
    else:
        raise UserError(
            f"a {type(module).__name__} has no vectors of texts for a probe; leave out --probe"
        )
    inputs = {"params": params}
    queries = model.apply(inputs, batch["query"], batch["query_length"], side="query")
    ids, lengths = batch["passages"][:, 0], batch["passages_length"][:, 0]
    passages = model.apply(inputs, ids, lengths, side="passage")
    return queries, passages


def ranks(queries: np.ndarray, passages: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The rank of each query's passage [Q] among all different ones.

    ids [Q, L] say which are the same. Of equal scores the own one is last, so that an encoder for
    which all texts are one has no success.
    """
    _, first, own = np.unique(ids, axis=0, return_index=True, return_inverse=True)
    scores = queries.astype(np.float32) @ passages[first].astype(np.float32).T
    right = np.take_along_axis(scores, own.reshape(-1, 1), axis=1)
    return (scores >= right).sum(axis=1)


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
    """What to do with a trace."""
    place = os.fspath(folder)
    return (
        f"the trace is in {place}; look at it with: xprof --logdir {place} "
        "(pip install 'qac_jax[profile]'), or open its *.trace.json.gz at ui.perfetto.dev"
    )
