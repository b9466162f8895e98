"""A slice: as many cells of a bundle as fit into some minutes, on a machine with little but JAX.

The stages run in a process of their own (`work`), which the outer one (`run`) stops in time to save
what there is: a training saves a checkpoint when it is stopped, all else is finished or made again.
Nothing is begun that could not be saved: no training in the last minute (or in the last quarter of
a slice that is shorter than four), nothing else that took longer, when it ran before, than there is
time left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qac_jax import progress
from qac_jax.errors import Interrupted, UserError
from qac_jax.evidence import layout, settings, slices
from qac_jax.evidence.layout import SCHEME, Bundle, PackedCell, finished
from qac_jax.evidence.slices import LEDGER
from qac_jax.pipeline import signals


# Seconds for saving at the end, and what a training needs at least to load, compile and take steps.
SAVING, BEGINNING = 25.0, 60.0
# A stage that is stopped has this share of the time for saving; then its process is killed.
_STOPPING = 0.6
# Seconds that it has after a signal from outside.
_PATIENCE = 20.0
# How the inner process ends: by itself, between two stages, killed.
_STOPPED = (0, -signal.SIGTERM, -signal.SIGKILL)


def run(
    archive: Path,
    out: Path,
    *,
    minutes: float,
    after: Sequence[Path] = (),
    work_folder: Path | None = None,
    share: str = "0/1",
    saving: float = SAVING,
) -> dict[str, Any]:
    """Runs a slice and saves it in `out`; goes on from the slices in `out` or in `after`.

    `work_folder` is kept, so that a later slice on this machine need not unpack.
    """
    began = time.monotonic()
    bundle = layout.described(archive)
    chosen(bundle, share)  # refused before anything is unpacked
    known = {folder: slices.read(folder, bundle) for folder in (*after, out)}
    before = [record for record in known.values() if record is not None]
    # Twice what saving took: more may have to be carried now.
    saving = max(saving, *(2 * record.get("seconds_of_saving", 0.0) for record in before), 0.0)
    if not minutes * 60 > saving + 5:
        raise UserError(
            f"minutes={minutes:g} leaves no time beside the {saving:g} seconds for saving; give "
            "more minutes, or a smaller --saving"
        )
    root = work_folder or Path(tempfile.mkdtemp(prefix="evidence-"))
    try:
        layout.unpack(archive, root)
        for folder, record in known.items():
            if record is not None:
                slices.unpack(folder, bundle, root)
        return _slice(bundle, root, out, share, began + minutes * 60 - saving, saving)
    finally:
        if work_folder is None:
            shutil.rmtree(root, ignore_errors=True)


def _slice(
    bundle: Bundle, root: Path, out: Path, share: str, stop: float, saving: float
) -> dict[str, Any]:
    """Works until `stop`, and saves."""
    progress_of = slices.Progress(bundle, root)
    before = len(progress_of.done())
    command = [sys.executable, "-m", "qac_jax.evidence", "work", str(root), "--share", share]
    # The two processes have no common clock but the wall's.
    command += ["--until", str(time.time() + stop - time.monotonic())]
    code = supervised(command, root / layout.CODE, stop + _STOPPING * saving)
    done = len(progress_of.done())
    began = time.monotonic()
    facts: dict[str, Any] = {"cells": len(bundle.cells), "done": done}
    size = slices.save(progress_of, out, facts)
    progress.say(
        f"{done} of {len(bundle.cells)} cells are done, {done - before} of them in this slice; "
        f"{size / 2**20:.1f} MiB saved in {time.monotonic() - began:.1f} s in {out}"
    )
    if code not in _STOPPED:
        raise UserError(
            "a stage of the bundle failed, see above; what was finished is saved, and the same "
            "command goes on from there"
        )
    return facts


def supervised(command: Sequence[str], code: Path, end: float) -> int:
    """Runs the inner process, and kills it at `end`; returns how it ended."""
    paths = [str(code.resolve()), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(command, env=environment)
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        try:
            return process.wait(max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        progress.say("the stage did not stop in time; its process is killed")
        process.kill()
        return process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(number: int, _: object) -> None:
    raise KeyboardInterrupt


def chosen(bundle: Bundle, share: str) -> Sequence[PackedCell]:
    """The cells of one machine among several: "I/N" are those with the numbers I, I + N, …"""
    number, _, count = share.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UserError(f"share={share!r} is not a share of the cells; give I/N, such as 0/2")
    return bundle.cells[int(number) :: int(count)]


def work(root: Path, share: str, until: float) -> None:
    """Runs the stages of the cells, one cell after the other, until `until` (Unix time)."""
    # Before any stage is imported: JAX reads it once, and examples are read without TFDS anywhere.
    os.environ["QAC_PLAIN_EXAMPLES"] = "1"
    worker = Worker(layout.read(root), root, until)
    timer = threading.Timer(max(0.0, until - time.time()), _stop)
    timer.daemon = True
    timer.start()
    try:
        with signals.interruptible():
            for number, cell in enumerate(cells := chosen(worker.bundle, share), start=1):
                if not worker.complete(cell, f"[cell {number}/{len(cells)}] {cell.name}"):
                    return
    except Interrupted as interrupted:
        progress.say(f"stopped: {interrupted}")
    finally:
        timer.cancel()


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@dataclasses.dataclass
class Worker:
    """Runs what the metrics of a cell need, as far as it is not there."""

    bundle: Bundle
    root: Path
    until: float
    began: bool = False  # whether a stage ran in this slice

    def __post_init__(self) -> None:
        path = self.root / LEDGER
        self.ledger: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        self.length = self.until - time.time()

    def complete(self, cell: PackedCell, label: str) -> bool:
        """Whether all metrics of the cell are there in the end."""
        return all([self._make(place, label) for place in cell.metrics])

    def _make(self, place: str, label: str) -> bool:
        if finished(self.root, place) is not None:
            return True
        if not all(self._make(other, label) for other in self.bundle.inputs(place)):
            return False
        stage = settings.from_json(_located(self.bundle.stages[place], self.root))
        name = place.rsplit("/", 1)[-1]
        if self.began and not self._fits(name, stage):
            progress.say(f"{label}: no time is left to begin {name}")
            return False
        progress.say(f"{label}: {name}")
        self._note(name, place)
        self._run(name, stage, place)
        return True

    def _run(self, name: str, stage: Any, place: str) -> None:
        from qac_jax.pipeline import stage as stage_lib

        self.began = True
        began = time.monotonic()
        stage_lib.execute(stage, self.root / place, replace=True)
        seconds = self.ledger.setdefault("seconds", {}).setdefault(name, [])
        seconds.append(round(time.monotonic() - began, 3))
        self._write()

    def _fits(self, name: str, stage: Any) -> bool:
        """Whether there is time to begin a stage: a training stops at any step."""
        left = self.until - time.time()
        if hasattr(stage, "schedule"):
            return left > min(BEGINNING, self.length / 4)
        before = self.ledger.get("seconds", {}).get(name, [])
        return left > 1.2 * max(before, default=0.0) + 1.0

    def _note(self, name: str, place: str) -> None:
        """Notes the device of a stage when it begins: it may be finished on another one."""
        import jax

        device = jax.devices()[0].device_kind
        devices = self.ledger.setdefault("devices", {}).setdefault(place, [])
        if device not in devices:
            devices.append(device)
        self._write()

    def _write(self) -> None:
        part = self.root / f"{LEDGER}.part"
        part.write_text(json.dumps(self.ledger, indent=1) + "\n")
        part.replace(self.root / LEDGER)


def _located(stage: Any, root: Path) -> Any:
    """The stage as JSON with its inputs as paths below the folder."""

    def place(value: Any) -> Any:
        if not isinstance(value, str) or SCHEME not in value:
            return value
        parts = [part.strip() for part in value.split(",")]
        return ",".join(
            str(root / part.removeprefix(SCHEME)) if part.startswith(SCHEME) else part
            for part in parts
        )

    return {**stage, "fields": {name: place(value) for name, value in stage["fields"].items()}}
