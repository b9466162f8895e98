"""The training loop: compile, resume, then step, log, validate and save until the end.

It waits for the devices only at steps that log, validate or save.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from qac_jax import hardware
from qac_jax.errors import UserError
from qac_jax.training import (
    estimate,
    interrupt,
    journal,
    packing,
    profiler,
    report,
    scaling,
    trackers,
)
from qac_jax.training import mesh as meshes
from qac_jax.training.feed import Loader
from qac_jax.training.journal import announce
from qac_jax.training.keeping import Kept
from qac_jax.training.probe import Probe
from qac_jax.training.settings import Monitoring
from qac_jax.training.step import Engine, State, model_flops
from qac_jax.training.validation import Validation


_HALF = "; a model whose numbers exceed 65504 needs --precision float32"

Measure = Callable[[State], journal.Figures]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The length of a run, and what happens every N steps of it."""

    total_steps: int
    monitoring: Monitoring = Monitoring()

    def at(self, every: int, step: int) -> bool:
        """Whether something that happens every N steps, and at the last step, happens now."""
        return step == self.total_steps or bool(every and step % every == 0)


def train(
    engine: Engine,
    data: Loader,
    plan: Plan,
    folder: epath.PathLike,
    *,
    identity: Mapping[str, Any],
    validation: Loader | None = None,
    probe: Loader | None = None,
    schedule: Callable[[int], Any] | None = None,
    params: Any = None,
    pack: bool = False,
    name: str = "",
) -> State:
    """Trains to the end of the plan, from the last checkpoint in `folder` if there is one.

    Returns the state whose parameters are the result: of the last step, or of the best one.
    `params` are initial parameters, `identity` describes the run (see Checkpoints), `pack` leaves
    padding out, `name` is what trackers call it. After a signal it saves and raises
    `interrupt.Saved`.
    """
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = plan.monitoring
    window = profiler.Window.parse(chosen.profile)
    window.check(plan.total_steps)
    recording = profiler.Recording(window, folder / profiler.FOLDER)
    mirrors = trackers.opened(chosen, name or folder.name)
    spec = meshes.whole_spec(data.spec, engine.mesh)
    known = hardware.find(engine.mesh.devices.flat[0].device_kind)
    step_flops = model_flops(engine.objective, spec) if known else None
    steps = packing.Steps(engine, lambda engine: compile_step(engine, spec), pack)
    measures = _measures(engine, validation, probe, chosen)

    kept = Kept(folder, identity, engine, chosen)
    state, step = kept.begin(engine, data, params, plan.total_steps)
    log = folder / "metrics.jsonl"
    journal.forget_after(log, step)

    since_log: list[Any] = []
    clock = journal.Clock(step)
    with (
        interrupt.watch() as signals,
        journal.metrics_file(log, mirrors) as metrics,
        kept.finishing(),
    ):
        while step < plan.total_steps:
            recording.begin(step, state)
            batch = _next(data, step, plan.total_steps)
            with clock.paused():  # a program may be compiled
                run_step = steps(batch)
            state, scalars = run_step(state, meshes.place(batch, engine.mesh))
            step += 1
            since_log.append(scalars)
            clock.tokens += journal.tokens_of(batch)

            with clock.paused():
                recording.end(step, state, run_step)
            if plan.at(chosen.log_every, step):
                figures = finite_means(engine, state, since_log, step)
                figures |= clock.rates(step, spec, step_flops, engine.mesh)
                if schedule is not None:
                    figures["learning_rate"] = float(schedule(step - 1))
                metrics.log(step, figures)
                announce(journal.log_line(step, plan.total_steps, figures))
                since_log.clear()
                clock.restart(step)
            for measure, every in measures:
                if plan.at(every, step):
                    with clock.paused():
                        measured = measure(state)
                        metrics.log(step, measured)
                        announce(f"step {step}: {journal.shown(measured)}")
                        kept.measured(step, state, measured)
            stop = signals.stop(step)
            if stop or plan.at(chosen.save_every, step):
                with clock.paused():
                    finite_means(engine, state, since_log, step)
                    kept.save(step, state, data)
            if stop and step < plan.total_steps:
                kept.close()
                raise interrupt.Saved(signals.number, step, plan.total_steps)

    return kept.result(step, state)


def _measures(
    engine: Engine, validation: Loader | None, probe: Loader | None, chosen: Monitoring
) -> list[tuple[Measure, int]]:
    """What is measured beside the training, and every how many steps."""
    measures: list[tuple[Measure, int]] = []
    if validation is not None:
        validate = Validation(engine, validation, chosen.validation_batches)
        measures.append((validate, chosen.validate_every))
    if probe is not None:
        measures.append((Probe(engine, probe, chosen), chosen.probe_every))
    return measures


def compile_step(engine: Engine, spec: Any) -> jax.stages.Compiled:
    """The step, compiled before anything is computed; prints memory and FLOPs."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in engine.mesh.shape.items())
    kind = engine.mesh.devices.flat[0].device_kind
    objective = estimate.keeping(engine.objective, spec, engine.mesh)
    engine = dataclasses.replace(engine, objective=objective)
    announce(f"compiling the step for {engine.mesh.size} x {kind} ({sizes})")
    began = time.monotonic()
    compiled = engine.compile_step(spec)
    seconds = time.monotonic() - began
    parameters = report.count_parameters(engine.abstract.params)
    for line in report.lines(compiled, parameters):
        announce(line)
    announce(f"compiled in {seconds:.1f} s")
    return compiled


def finite_means(engine: Engine, state: State, since_log: list[Any], step: int) -> journal.Figures:
    """The mean metrics of the last steps; raises UserError if too many were not finite."""
    records = jax.device_get(since_log)
    skipped = int(jax.device_get(state.skipped))
    if skipped > engine.max_skips:
        first = step - len(records) + 1
        bad = [
            first + i
            for i, metrics in enumerate(records)
            if not _is_finite(metrics) and not scaling.is_overflow(metrics)
        ]
        where = f"step {bad[0]}, between steps {first} and {step}" if bad else f"step {step}"
        raise UserError(
            f"the loss or its gradient is not finite at {where} ({skipped} such steps, "
            f"max_skips={engine.max_skips}); lower the learning rate, lengthen the warm-up, or "
            "allow more skipped steps" + (_HALF if engine.scales else "")
        )
    means = journal.means([metrics for metrics in records if _is_finite(metrics)])
    counts = {"skipped": skipped, "overflows": sum(map(scaling.is_overflow, records))}
    if engine.scales and records:
        means[scaling.METRIC] = float(records[-1][scaling.METRIC])
    return {**means, **{name: count for name, count in counts.items() if count}}


def _is_finite(metrics: Mapping[str, Any]) -> bool:
    return math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])


def _next(data: Loader, step: int, total: int) -> dict[str, np.ndarray]:
    try:
        return next(data)
    except StopIteration:
        raise UserError(
            f"the data ended after {step} of {total} steps; choose fewer steps"
        ) from None
