"""Loss of power: a process dies at a file operation, and what it had not brought to the disk goes.

power.c notes what fsync has brought there, also from libraries that are not Python. Afterwards the
folder is put together again in one of three ways, each of which some file system may bring about:
`synced` (nothing but what was synchronised), `names` (all names, but only contents that were
synchronised: others are empty), `mixed` (of each name and content by chance the old or the new one,
or a half-written one).
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import subprocess
from pathlib import Path

import campaign_live
from campaign_kills import spread
from campaign_lab import Lab, Outcome, Result
from campaign_material import COMMANDS

from qac_jax import artifacts


WAYS = ("synced", "names", "mixed")
LIVE = "live"
POWER = {name: 2 for name in ("passages", "vocabulary", "words", "bm25", "run_bm25", LIVE)}
POWER |= dict.fromkeys(("base", "packed", "retriever", "vectors", "exported"), 1)


def library(folder: Path) -> str:
    """Where the compiled power.c is; "" where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "power.so"
    source = Path(__file__).with_name("power.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    return str(made) if done.returncode == 0 else ""


def fail(lab: Lab, name: str, number: int, rng: random.Random) -> Outcome:
    """Every tenth run has ended well when the power goes: then all of it must be there."""
    outcome, way = Outcome(landed=1), WAYS[number % len(WAYS)]
    if name == LIVE:
        return _fail_living(lab, outcome, number // len(WAYS), way, rng)
    # A folder of its own above, so that its entry is lost with the rest.
    command, out = COMMANDS[name].split(), f"power/{name}/out"
    total = lab.operations(command, out)
    lab.clear(out)
    at = spread(name, number // len(WAYS), total + total // 10 + 1)
    died = _run(lab, [*command, "--out", out], out, at)
    where = f"operation {at} of {total}, {way}"
    lose(lab, out, way, rng)
    if died.code == 0 and not (lab.work / out / artifacts.COMMIT).exists():
        outcome.fault("lost", f"{where}: it had ended well, and the result is not there")
    lab.half(outcome, out, name, where)
    lab.same(outcome, lab.run(command, out=out), out, name, where)
    return outcome


def _fail_living(lab: Lab, outcome: Outcome, number: int, way: str, rng: random.Random) -> Outcome:
    name = rng.choice(list(campaign_live.CHANGES))
    after, total = campaign_live.whole(lab, name)
    campaign_live.base(lab)
    before = sorted(campaign_live.ids(lab))
    at = spread(name, number, total + total // 5 + 1)
    command = campaign_live.CHANGES[name].split()
    # What the index had before is on the disk for long.
    died = _run(lab, command, campaign_live.FOLDER, at, on_disk=True)
    lose(lab, campaign_live.FOLDER, way, rng)
    where = f"{name}, operation {at} of {total}, {way}"
    state = after if died.code == 0 else before
    campaign_live.changed(lab, outcome, name, state, after, where)
    return outcome


def _run(lab: Lab, command: list[str], out: str, at: int, *, on_disk: bool = False) -> Result:
    store = lab.work / "power_store"
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir()
    folder = lab.work / out
    if on_disk:
        for path in [folder.parent, folder, *folder.rglob("*")]:
            _note(store, path)
    return lab.run(command, watch=out, at=at, environment={"POWER_STORE": str(store)})


def _note(store: Path, path: Path) -> None:
    """What power.c notes, of a path that was on the disk before."""
    inode = path.stat().st_ino
    if path.is_file():
        shutil.copyfile(path, store / f"{inode}.file")
        return
    names = [f"{p.lstat().st_ino} {'d' if p.is_dir() else 'f'} {p.name}\n" for p in path.iterdir()]
    (store / f"{inode}.dir").write_text("".join(names))


def lose(lab: Lab, out: str, way: str, rng: random.Random) -> None:
    """Makes of a folder what a loss of power may leave of it."""
    folder = lab.work / out
    loss = _Loss(lab.work / "power_store", way, rng)
    above = folder.parent
    left = above.with_name(f"{above.name}_left")
    shutil.rmtree(left, ignore_errors=True)
    left.mkdir()
    entries = loss.entries(above.stat().st_ino, above)
    if folder.name in entries:
        loss.write(entries[folder.name], left / folder.name)
    shutil.rmtree(folder, ignore_errors=True)
    if (left / folder.name).exists():
        (left / folder.name).rename(folder)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A name in a folder. `there`: the path it has now, if it is there still."""

    inode: int
    is_folder: bool
    there: Path | None


@dataclasses.dataclass
class _Loss:
    store: Path
    way: str
    rng: random.Random

    def entries(self, inode: int, there: Path | None) -> dict[str, _Entry]:
        """The names that a folder has afterwards."""
        now: dict[str, _Entry] = {}
        if there is not None:
            for path in sorted(there.iterdir()):
                if not path.is_symlink():
                    now[path.name] = _Entry(path.stat().st_ino, path.is_dir(), path)
        if self.way == "names":
            return now
        synced: dict[str, _Entry] = {}
        noted = self.store / f"{inode}.dir"
        if noted.exists():
            for line in noted.read_text().splitlines():
                number, kind, name = line.split(" ", 2)
                known = now.get(name)
                at = known.there if known and known.inode == int(number) else None
                synced[name] = _Entry(int(number), kind == "d", at)
        if self.way == "synced":
            return synced
        mixed: dict[str, _Entry] = {}
        for name in sorted(now | synced):
            entry = self.rng.choice((now, synced)).get(name)
            if entry is not None:
                mixed[name] = entry
        return mixed

    def write(self, entry: _Entry, target: Path) -> None:
        if entry.is_folder:
            target.mkdir()
            for name, child in self.entries(entry.inode, entry.there).items():
                self.write(child, target / name)
            return
        noted = self.store / f"{entry.inode}.file"
        synced = noted.read_bytes() if noted.exists() else b""
        if self.way != "mixed" or entry.there is None:
            target.write_bytes(synced)
            return
        now = entry.there.read_bytes()
        if now != synced:
            cut = now[: self.rng.randint(0, len(now))]
            now = self.rng.choice((now, synced, cut, bytes(len(now))))
        target.write_bytes(now)
