"""Kills at file operations, and signals at random moments: the same command then finishes."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from campaign_lab import Lab, Result, different
from campaign_material import COMMANDS, SLOW

from qac_jax import artifacts
from qac_jax.errors import UserError


_DELAYS = (0.0, 0.0, 0.0, 0.0005, 0.005, 0.05)
RECIPE = "recipe"


@dataclasses.dataclass
class Row:
    """What happened to one stage."""

    name: str
    operations: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[str] = dataclasses.field(default_factory=list)

    def fault(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{self.name}: {kind}: {what}")


def stages(lab: Lab, names: Sequence[str], points: int, rng: random.Random) -> Iterator[Row]:
    """Kills every stage at that many operations, spread over all of them."""
    for name in names:
        command, out = COMMANDS[name].split(), f"kill/{name}"
        row = Row(name)
        shutil.rmtree(lab.work / out, ignore_errors=True)
        row.operations = lab.run(command, out=out).operations
        for at in _chosen(row.operations, points if name not in SLOW else points // 2, rng):
            shutil.rmtree(lab.work / out)
            delay = rng.choice(_DELAYS)
            died = lab.run(command, out=out, at=at, delay=delay)
            where = f"operation {at} of {row.operations} and {delay * 1e3:g} ms"
            row.counts["kills"] += died.code < 0
            _check_half(lab, row, out, name, where)
            done = lab.run(command, out=out)
            _check_done(lab, row, done, out, name, where)
        yield row


def recipe(lab: Lab, points: int, rng: random.Random) -> Row:
    """Kills a recipe of four stages at operations below its folder."""
    row, command, out = Row(RECIPE), ["run", "recipe.gin"], "kill/recipe"
    shutil.rmtree(lab.work / out, ignore_errors=True)
    row.operations = lab.run(command, out=out).operations
    wanted = lab.work / "kill/recipe_whole"
    shutil.rmtree(wanted, ignore_errors=True)
    shutil.copytree(lab.work / out, wanted)
    for at in _chosen(row.operations, points, rng):
        shutil.rmtree(lab.work / out)
        row.counts["kills"] += lab.run(command, out=out, at=at).code < 0
        done = lab.run(command, out=out)
        where = f"operation {at} of {row.operations}"
        if done.code or done.traceback:
            row.fault("lost", f"{where}: {done.said}")
            continue
        for stage in sorted(p.name for p in wanted.iterdir() if (p / artifacts.COMMIT).exists()):
            found = artifacts.load(lab.work / out / stage)
            if what := different(found, artifacts.load(wanted / stage)):
                row.fault("different", f"{where}: {stage}: {what}")
    return row


def signals(lab: Lab, names: Sequence[str], count: int, rng: random.Random) -> Iterator[Row]:
    """SIGTERM and SIGINT at random moments of a process of its own."""
    for name in names:
        row, command, out = Row(name), COMMANDS[name].split(), f"signal/{name}"
        shutil.rmtree(lab.work / out, ignore_errors=True)
        began = time.monotonic()
        lab.started(command, out).communicate()
        seconds = time.monotonic() - began
        for turn in range(count):
            number = (signal.SIGTERM, signal.SIGINT)[turn % 2]
            shutil.rmtree(lab.work / out, ignore_errors=True)
            process = lab.started(command, out)
            # Python itself needs a moment before a signal can become a sentence.
            after = rng.uniform(0.35, max(1.0, seconds))
            time.sleep(after)
            row.counts["signals"] += process.poll() is None
            process.send_signal(number)
            where = f"{number.name} after {after:.2f} s of {seconds:.2f}"
            try:
                error = process.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired:
                process.kill()
                error = process.communicate()[1]
                row.fault("hang", where)
            if "Traceback" in error:
                row.fault("traceback", f"{where}: {error[-300:]}")
            elif process.returncode < 0 and process.returncode != -number:  # before our handler
                row.fault("killed by itself", f"{where}: signal {-process.returncode}")
            done = lab.run(command, out=out)
            _check_done(lab, row, done, out, name, where)
        yield row


def _chosen(total: int, points: int, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(1, total + 1), min(points, total)))


def _check_half(lab: Lab, row: Row, out: str, name: str, where: str) -> None:
    """A folder that says that it is whole must be."""
    if not (Path(lab.work) / out / artifacts.COMMIT).exists():
        return
    try:
        found = artifacts.load(lab.work / out)
        found.verify()
    except UserError as error:
        row.fault("half", f"{where}: {error}")
        return
    if found.identity != artifacts.load(lab.work / "ref" / name).identity:
        row.fault("half", f"{where}: another identity")


def _check_done(lab: Lab, row: Row, done: Result, out: str, name: str, where: str) -> None:
    if done.traceback:
        row.fault("traceback", f"{where}: {done.error[-300:]}")
    elif done.code:
        row.fault("lost", f"{where}: {done.said}")
    elif what := lab.compared(out, name):
        row.fault("different", f"{where}: {what}")
