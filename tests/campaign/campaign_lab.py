"""A folder in which `qac` runs are watched, killed and compared; what an attack came to.

Most runs are forks of one warm process (campaign_server.py), so that one takes a fraction of a
second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import campaign_material

from qac_jax import artifacts
from qac_jax.errors import UserError


TRACE = "Traceback (most recent call last)"
CPU = 30.0  # seconds of work within which bad input is refused
LIMIT = 150.0  # seconds by the clock; a campaign may share its machine
MEMORY = 3 << 30
_LONGEST = 2000  # characters of a refusal
TOKEN = "0123456789abcdef0123456789abcdef"


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended. `code` is negative where a signal ended it; `seconds` are of the CPU."""

    code: int
    out: str
    error: str
    seconds: float
    peak: int
    hung: bool

    @property
    def traceback(self) -> bool:
        return TRACE in self.error or TRACE in self.out

    @property
    def said(self) -> str:
        lines = [line for line in self.error.splitlines() if line.strip()]
        return ([line for line in lines if line.startswith("qac: ")] or lines or [""])[-1]

    def faults(self) -> list[str]:
        """What no input may bring about."""
        checks = {
            "hang": self.hung or self.seconds > CPU,
            "killed by itself": self.code < 0 and not self.hung,
            "traceback": self.traceback,
            "refused without a sentence": self.code == 2 and not self.said.startswith("qac: "),
            "other exit code": self.code > 2,
            "terminal escapes": "\x1b" in self.out + self.error,
            "memory": self.peak > MEMORY,
            "a refusal of a page": self.code == 2 and len(self.said) > _LONGEST,
        }
        return [name for name, true in checks.items() if true]


@dataclasses.dataclass
class Outcome:
    """What one attack came to, as the journal has it. `landed`: kills or signals, or 1."""

    landed: int = 0
    fresh: int = 0  # processes that were started anew
    ended: str = ""
    faults: list[list[str]] = dataclasses.field(default_factory=list)

    def fault(self, kind: str, what: str) -> None:
        self.faults.append([kind, what])

    def of_input(self, result: Result) -> None:
        """A run on bad input ends in one sentence, or with a result."""
        self.landed = 1
        self.ended = "refused" if result.code == 2 else "accepted"
        for kind in result.faults():
            self.fault(kind, result.error[-600:])


class Lab:
    """A folder with the material and the uninterrupted results, and a warm process.

    `runs` are the commands of the present attack with how they ended: what a fault is kept with.
    """

    def __init__(self, work: Path, *, power: str = ""):
        """`power`: the library that notes what reaches the disk (campaign_power.py)."""
        self.work = work
        self.runs: list[tuple[str, Result]] = []
        self._operations: dict[str, int] = {}
        work.mkdir(parents=True, exist_ok=True)
        campaign_material.write(work)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XDG_CACHE_HOME": str(work / "cache"),
            "HF_HUB_OFFLINE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "QAC_SERVE_TOKEN": TOKEN,
        }
        environment.pop("QAC_FSYNC", None)
        self._environment = environment
        with (work / "server.log").open("w") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-c", "import campaign_server; campaign_server.serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=work,
                env={**environment, **({"LD_PRELOAD": power} if power else {})},
            )
        self._read("ready")

    def _read(self, wanted: str = "") -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line or (wanted and line.strip() != wanted):
            raise RuntimeError(f"the warm process ended: {(self.work / 'server.log').read_text()}")
        return None if wanted else json.loads(line)

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def _ask(self, **request: Any) -> Any:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._read()

    def start(
        self,
        arguments: Sequence[str],
        *,
        watch: str = "",
        at: int = 0,
        delay: float = 0.0,
        name: str = "run",
        file_limit: int = -1,
        count: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """A fork of the warm process: its process id, for `end`."""
        asked = dict(arguments=list(arguments), watch=watch, at=at, delay=delay, name=name)
        more = dict(file_limit=file_limit, count=count, environment=dict(environment or {}))
        return self._ask(**asked, **more)["pid"]

    def end(
        self, pid: int, arguments: Sequence[str], *, limit: float = 600.0, name: str = "run"
    ) -> Result:
        """How it ended; after `limit` seconds it is killed."""
        measured = self._ask(wait=pid, limit=limit)
        texts = [self.output(name, suffix) for suffix in ("out", "err")]
        result = Result(out=texts[0], error=texts[1], **measured)
        self.runs.append((shlex.join(["qac", *arguments]), result))
        return result

    def output(self, name: str, suffix: str) -> str:
        """What a run has printed so far; nothing before it has begun."""
        with contextlib.suppress(FileNotFoundError):
            return (self.work / f".{name}.{suffix}").read_text(errors="replace")
        return ""

    def run(
        self, arguments: Sequence[str], *, out: str = "", limit: float = 600.0, **how: Any
    ) -> Result:
        """A run to its end; killed at the `at`-th operation below `out`, or `delay` later."""
        whole = [*arguments, *(["--out", out] if out else [])]
        pid = self.start(whole, **{"watch": out or "kill", **how})
        return self.end(pid, whole, limit=limit)

    def operations(self, arguments: Sequence[str], out: str) -> int:
        """How many file operations an uninterrupted run has; leaves its result in `out`."""
        key = shlex.join([*arguments, out])
        if key not in self._operations:
            self.clear(out)
            done = self.run(arguments, out=out, count=True)
            if done.code:
                raise RuntimeError(f"the uninterrupted {key} failed: {done.error[-2000:]}")
            self._operations[key] = int(self.output("run", "count"))
        return self._operations[key]

    def clear(self, out: str) -> None:
        shutil.rmtree(self.work / out, ignore_errors=True)
        (self.work / out).parent.mkdir(parents=True, exist_ok=True)

    def fresh(
        self, arguments: Sequence[str], *, number: int = 0, after: float = 0.0, limit: float = 600.0
    ) -> tuple[Result, bool]:
        """A process of its own, as users start one, with a signal `after` some seconds.

        Returns also whether the signal came in time. The clock begins with the first line of ours:
        no program can answer for what happens while the interpreter itself starts.
        """
        begun = "import os, sys; os.write(1, b'+')"
        code = f"{begun}; from qac_jax.__main__ import main; sys.exit(main())"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work,
            env=self._environment,
        )
        assert process.stdout is not None
        process.stdout.read(1)
        landed = hung = False
        if number:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                landed = True
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, error = process.communicate()
            hung = True
        texts = [text.decode(errors="replace") for text in (out, error)]
        result = Result(process.returncode, texts[0], texts[1], seconds=0.0, peak=0, hung=hung)
        self.runs.append((shlex.join(["qac", *arguments]) + "  (a fresh process)", result))
        return result, landed

    def reference(self, names: Sequence[str]) -> None:
        """Makes what is not there yet, uninterrupted."""
        for name in names:
            if not (self.work / "ref" / name / artifacts.COMMIT).exists():
                done = self.run(campaign_material.COMMANDS[name].split(), out=f"ref/{name}")
                if done.code:
                    raise RuntimeError(f"the uninterrupted {name} failed: {done.error[-2000:]}")

    def half(self, outcome: Outcome, out: str, name: str, where: str) -> None:
        """A folder that says that it is whole must be."""
        if not (self.work / out / artifacts.COMMIT).exists():
            return
        try:
            found = artifacts.load(self.work / out)
            found.verify()
        except UserError as error:
            outcome.fault("half", f"{where}: {error}")
            return
        if found.identity != artifacts.load(self.work / "ref" / name).identity:
            outcome.fault("half", f"{where}: another identity")

    def same(self, outcome: Outcome, done: Result, out: str, name: str, where: str) -> None:
        """The command has ended as if nothing had happened."""
        if done.traceback:
            outcome.fault("traceback", f"{where}: {done.error[-600:]}")
        elif done.hung:
            outcome.fault("hang", where)
        elif done.code:
            outcome.fault("lost", f"{where}: {done.said}")
        elif what := self.compared(out, name):
            outcome.fault("different", f"{where}: {what}")

    def compared(self, out: str, name: str) -> str:
        """In what a result differs from the uninterrupted one; "" if it does not."""
        try:
            found = artifacts.load(self.work / out)
            found.verify()
        except UserError as error:
            return str(error)
        return different(found, artifacts.load(self.work / "ref" / name))

    def keep(self, label: str, outcome: Outcome, *folders: str) -> Path:
        """Writes all that is known of a fault to the disk, at once."""
        place = self.work / "faults" / label
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with (place / "fault.txt").open("w") as file:
            for kind, what in outcome.faults:
                file.write(f"{kind}: {what}\n")
            for command, result in self.runs:
                file.write(f"\n$ {command}\nended with {result.code}, {result.seconds:.1f} s\n")
                file.write(f"--- stderr\n{result.error[-200_000:]}\n--- stdout\n")
                file.write(f"{result.out[-20_000:]}\n")
        for folder in folders:
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(self.work / folder, place / Path(folder).name, symlinks=True)
        return place


def different(found: artifacts.Artifact, wanted: artifacts.Artifact) -> str:
    """In what two artefacts differ beside times, logs and bytes that the identity leaves out."""
    if (found.identity, found.count) != (wanted.identity, wanted.count):
        return f"identity {found.identity[:12]}, count {found.count}"
    covered = tuple(f"{name}/" for name in found.record["contents"])
    if names := {n for n in set(found.files) ^ set(wanted.files) if not n.startswith(covered)}:
        return f"the files {sorted(names)}"
    here = {str(p.relative_to(found.path)) for p in Path(found.path).rglob("*") if p.is_file()}
    if strays := here - set(found.files) - {artifacts.COMMIT, artifacts.LOCK}:
        return f"left behind {sorted(strays)}"
    return ""
