"""Kills at file operations, and signals at random moments: the same command then finishes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from campaign_lab import Lab, Outcome, different
from campaign_material import COMMANDS, HELPERS, QUICK, SLOW

from qac_jax import artifacts
from qac_jax.errors import UserError


# Groups that compile a network, or whose inputs come from one.
COMPUTING = {*COMMANDS} - {*QUICK} | {"live", "serve", "add", "delete", "replace", "compact"}
_DELAYS = (0.0, 0.0, 0.0, 0.0005, 0.005, 0.05)
RECIPE, REPLACED = "recipe", "replaced"
# Group -> how many kills it gets in proportion.
STAGES = {name: 1 if name in SLOW else 2 for name in COMMANDS if name not in HELPERS}
STAGES |= {RECIPE: 2, REPLACED: 2}
# Stages that get signals: quick ones, some that train, one that applies a network.
SIGNALLED = {"passages": 1, "contexts": 1, "base": 1, "packed": 1, "vectors": 1, "exported": 1}


def kill(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """Kills a stage at an operation; numbers that follow one another are spread over all."""
    if name == RECIPE:
        return _kill_recipe(lab, number, rng)
    outcome, out = Outcome(), f"kill/{name}"
    command = COMMANDS["passages" if name == REPLACED else name].split()
    wanted = "passages" if name == REPLACED else name
    if name == REPLACED:
        command.append("--overwrite")
        before = lab.work / "ref/bm25"
    total = lab.operations(command, out)
    lab.clear(out)
    if name == REPLACED:
        shutil.copytree(before, lab.work / out)
        total += sum(1 for _ in before.rglob("*"))
    where = []
    # Some are killed once more while they resume.
    for at in (spread(name, number, total), rng.randint(1, total))[: 1 + (rng.random() < 0.25)]:
        delay = rng.choice(_DELAYS)
        died = lab.run(command, out=out, at=at, delay=delay)
        outcome.landed += died.code in (-signal.SIGKILL, -signal.SIGALRM)
        where.append(f"operation {at} of {total} and {delay * 1e3:g} ms")
        if died.traceback:
            outcome.fault("traceback", f"{where}: {died.error[-600:]}")
        if name != REPLACED or _is_new(lab, out):
            lab.half(outcome, out, wanted, str(where))
        elif artifacts.peek(lab.work / out) is None:
            outcome.fault("lost", f"{where}: the folder is nobody's")
    lab.same(outcome, lab.run(command, out=out), out, wanted, str(where))
    return outcome


def spread(group: str, number: int, total: int) -> int:
    """The numbers 1 to `total` in an order that soon has some of all parts."""
    order = list(range(1, total + 1))
    random.Random(group).shuffle(order)
    return order[number % total]


def _is_new(lab: Lab, out: str) -> bool:
    record = artifacts.peek(lab.work / out)
    return record is not None and record["kind"] == "passages"


def _kill_recipe(lab: Lab, number: int, rng: random.Random) -> Outcome:
    """Kills a recipe of four stages at operations below its folder."""
    outcome, command, out = Outcome(), ["run", "recipe.gin"], "kill/recipe"
    wanted = lab.work / "kill/recipe_whole"
    total = lab.operations(command, out)
    if not wanted.exists():
        shutil.copytree(lab.work / out, wanted)
    lab.clear(out)
    at, delay = spread(RECIPE, number, total), rng.choice(_DELAYS)
    died = lab.run(command, out=out, at=at, delay=delay)
    outcome.landed = int(died.code < 0)
    done = lab.run(command, out=out)
    where = f"operation {at} of {total} and {delay * 1e3:g} ms"
    if done.code or done.traceback:
        outcome.fault("traceback" if done.traceback else "lost", f"{where}: {done.said}")
        return outcome
    for stage in sorted(p.name for p in wanted.iterdir() if (p / artifacts.COMMIT).exists()):
        try:
            found = artifacts.load(lab.work / out / stage)
            found.verify()
            what = different(found, artifacts.load(wanted / stage))
        except UserError as error:
            what = str(error)
        if what:
            outcome.fault("different", f"{where}: {stage}: {what}")
    return outcome


_seconds: dict[tuple[str, bool], float] = {}


def interrupt(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """SIGTERM or SIGINT at a random moment; every second one to a process that starts anew.

    Those reach imports too, and the end of an interpreter.
    """
    outcome, command, out = Outcome(), COMMANDS[name].split(), f"kill/signal_{name}"
    fresh, sent = number % 2 == 0, (signal.SIGTERM, signal.SIGINT)[number // 2 % 2]
    whole = [*command, "--out", out]
    if (name, fresh) not in _seconds:
        lab.clear(out)
        began = time.monotonic()
        if fresh:
            lab.fresh(whole)
        else:
            lab.run(command, out=out)
        _seconds[name, fresh] = time.monotonic() - began
    lab.clear(out)
    after = rng.uniform(0.0, _seconds[name, fresh])
    if fresh:
        ended, landed = lab.fresh(whole, number=sent, after=after, limit=120)
    else:
        pid = lab.start(whole, watch=out)
        time.sleep(after)
        os.kill(pid, sent)  # a process that has ended already stands there until it is asked for
        ended = lab.end(pid, whole, limit=120)
        landed = ended.code != 0 or "continue with" in ended.error
    outcome.landed, outcome.fresh = int(landed), int(fresh)
    where = f"{sent.name} after {after:.2f} s of {_seconds[name, fresh]:.2f}"
    outcome.ended = "by the signal" if ended.code == -sent else "in a sentence"
    if ended.hung:
        outcome.fault("hang", where)
    elif ended.traceback:
        outcome.fault("traceback", f"{where}: {ended.error[-600:]}")
    elif ended.code < 0 and ended.code != -sent:  # before our handler, or after it has gone
        outcome.fault("killed by itself", f"{where}: signal {-ended.code}")
    lab.same(outcome, lab.run(command, out=out), out, name, where)
    return outcome


_LINKS = (".lock", ".unfinished.json.part", ".journal.jsonl.part", "artifact.json.part",
          ".unfinished.json", ".journal.jsonl", "artifact.json", "link", "tokenizer", ".scratch",
          "passages-00000-of-00001.jsonl.part", ".training", ".writing-offsets.npy")  # fmt: skip


def link(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """An interrupted folder gets a link to somebody's files: they stay, whatever is run."""
    outcome, command, out = Outcome(landed=1), COMMANDS[name].split(), f"kill/link_{name}"
    total = lab.operations(command, out)
    lab.clear(out)
    foreign, at = lab.work / "foreign", spread(name, number, total)
    shutil.rmtree(foreign, ignore_errors=True)
    (foreign / "sub").mkdir(parents=True)
    for file in ("thesis.txt", "sub/thesis.txt"):
        (foreign / file).write_text("years of work")
    lab.run(command, out=out, at=at)
    place = lab.work / out
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    linked = rng.choice(folders) / rng.choice(_LINKS)
    mark, finished = place / ".unfinished.json", (place / "artifact.json").is_file()
    if linked.is_dir() and not linked.is_symlink():
        shutil.rmtree(linked)
    linked.unlink(missing_ok=True)
    linked.parent.mkdir(parents=True, exist_ok=True)
    target = foreign / rng.choice(["", "thesis.txt", "new.txt"])
    linked.symlink_to(target)
    where = f"operation {at} of {total}, {linked.relative_to(lab.work)} -> {target}"
    overwrite = ["--overwrite"] * (rng.random() < 0.5)
    ended = lab.run([*command, *overwrite], out=out)
    for kind in ended.faults():
        outcome.fault(kind, f"{where}: {ended.error[-600:]}")
    kept = {str(p.relative_to(foreign)): p.read_text() for p in foreign.rglob("*") if p.is_file()}
    if kept != dict.fromkeys(("thesis.txt", "sub/thesis.txt"), "years of work"):
        outcome.fault("let in", f"{where}: changed what is outside of the folder")
    outcome.ended = "refused" if ended.code == 2 else "accepted"
    if ended.code == 2:
        if linked.is_symlink():
            linked.unlink()
        if linked == mark:  # what says that the folder is ours: emptied, as the sentence advises
            lab.clear(out)
        ended = lab.run([*command, "--overwrite"], out=out)
    elif finished and linked.is_symlink():  # nothing was to be done, so it stayed
        linked.unlink()
    lab.same(outcome, ended, out, name, where)
    return outcome


LINKED = {"passages": 2, "vocabulary": 1, "words": 1, "bm25": 1, "base": 1}
FULL = ("passages", "contexts", "words", "base", "bm25", "negatives", "vectors", "index",
        "run_bm25", "metrics", "exported")  # fmt: skip


def full(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """A disk that is full: one sentence, nothing whole that is not; with space made, it is done.

    Every second one is a file system of some size, where this user may mount one; else no file can
    grow beyond some size, which libraries that are not Python see too.
    """
    outcome, command, out = Outcome(landed=1), COMMANDS[name].split(), f"kill/full_{name}/out"
    lab.clear(out)
    whole = artifacts.load(lab.work / "ref" / name).files
    sizes = sorted(entry["size"] for entry in whole.values())
    disk = (lab.work / out).parent
    mounted = False
    if number % 2:
        space = rng.randint(1, max(2, int(sum(sizes) * 1.5) >> 12)) << 12
        mounted = _mount(disk, space)
    try:
        if mounted:
            where = f"a disk of {space} bytes"
            ended = lab.run(command, out=out, limit=300)
        else:
            limit = rng.choice([0, rng.randint(0, sizes[-1]), max(0, rng.choice(sizes) - 1)])
            where = f"files of at most {limit} bytes"
            ended = lab.run(command, out=out, file_limit=limit, limit=300)
        outcome.ended = "refused" if ended.code == 2 else "accepted"
        for kind in ended.faults():
            if kind != "hang" or ended.hung:  # training may take its time
                outcome.fault(kind, f"{where}: {ended.error[-600:]}")
        lab.half(outcome, out, name, where)
        if mounted:
            _mount(disk, 1 << 30, again=True)
        lab.same(outcome, lab.run(command, out=out), out, name, where)
    finally:
        if mounted:
            os.system(f"umount {disk} 2>/dev/null")
    return outcome


def _mount(place: Path, size: int, again: bool = False) -> bool:
    options = f"{'remount,' * again}size={size}"
    return os.system(f"mount -t tmpfs -o {options} tmpfs {place} 2>/dev/null") == 0
