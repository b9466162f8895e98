"""Runs of `qac` that are watched, killed and compared.

Most runs are forks of one warm process that has imported the package already, so that one takes a
fraction of a second. An audit hook counts the file operations below --out, and the process sends
itself SIGKILL at the one that is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import campaign_material
import toy_kills

from qac_jax import artifacts
from qac_jax.errors import UserError


TRACE = "Traceback (most recent call last)"
LIMIT = 30.0  # seconds within which bad input is refused
MEMORY = 3 << 30
_LONGEST = 2000  # characters of a refusal


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended. `code` is negative where a signal ended it."""

    code: int
    out: str
    error: str
    seconds: float
    peak: int
    hung: bool
    operations: int

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
            "hang": self.hung,
            "killed by itself": self.code < 0 and not self.hung,
            "traceback": self.traceback,
            "refused without a sentence": self.code == 2 and not self.said.startswith("qac: "),
            "other exit code": self.code > 2,
            "terminal escapes": "\x1b" in self.out + self.error,
            "memory": self.peak > MEMORY,
            "a refusal of a page": self.code == 2 and len(self.said) > _LONGEST,
        }
        return [name for name, true in checks.items() if true]


class Lab:
    """A folder with the material and the uninterrupted results, and a warm process."""

    def __init__(self, work: Path):
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        campaign_material.write(work)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XDG_CACHE_HOME": str(work / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        environment.pop("QAC_FSYNC", None)
        self._environment = environment
        self._server = subprocess.Popen(
            [sys.executable, "-c", "import campaign_lab; campaign_lab.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=work,
            env=environment,
        )

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def run(
        self,
        arguments: Sequence[str],
        *,
        out: str = "",
        at: int = 0,
        delay: float = 0.0,
        limit: float = 600.0,
    ) -> Result:
        """A run in a fork; killed at the `at`-th operation below `out`, or `delay` later."""
        assert self._server.stdin is not None and self._server.stdout is not None
        whole = [*arguments, *(["--out", out] if out else [])]
        ask = {"arguments": whole, "watch": out, "at": at, "delay": delay, "limit": limit}
        self._server.stdin.write(json.dumps(ask) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        out_text, error = (
            (self.work / name).read_text(errors="replace") for name in (".out", ".err")
        )
        return Result(answer["code"], out_text, error, *(answer[n] for n in _MEASURED))

    def started(self, arguments: Sequence[str], out: str) -> subprocess.Popen[str]:
        """A process of its own, as users start one."""
        code = "import sys; from qac_jax.cli import main; sys.exit(main())"
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "--out", out],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env=self._environment,
        )

    def reference(self, names: Sequence[str]) -> None:
        """Makes what is not there yet, uninterrupted."""
        for name in names:
            if not (self.work / "ref" / name / artifacts.COMMIT).exists():
                done = self.run(campaign_material.COMMANDS[name].split(), out=f"ref/{name}")
                if done.code:
                    raise RuntimeError(f"the uninterrupted {name} failed: {done.error[-2000:]}")

    def compared(self, out: str, name: str) -> str:
        """In what a result differs from the uninterrupted one; "" if it does not."""
        try:
            found = artifacts.load(self.work / out)
            found.verify()
        except UserError as error:
            return str(error)
        return different(found, artifacts.load(self.work / "ref" / name))


_MEASURED = ("seconds", "peak", "hung", "operations")


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


def serve() -> None:
    """The warm process: reads what to run, a line each, and answers how it ended."""
    import jax  # noqa: F401
    import optax  # noqa: F401
    import safetensors.numpy  # noqa: F401

    from qac_jax import cli, config  # noqa: F401
    from qac_jax.pipeline import recipe  # noqa: F401

    for line in sys.stdin:
        ask = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(cli.main, ask)
        code, peak, hung = _wait(child, ask["limit"])
        count = Path(".count")
        operations = int(count.read_text()) if count.exists() else 0
        answer = [time.monotonic() - began, peak, hung, operations]
        print(json.dumps({"code": code, **dict(zip(_MEASURED, answer, strict=True))}), flush=True)


def _wait(child: int, limit: float) -> tuple[int, int, bool]:
    end, hung = time.monotonic() + limit, False
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end and not hung:
            hung = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it has started and left
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return code, usage.ru_maxrss * 1024, hung


def _child(main: Any, ask: dict[str, Any]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        Path(".count").unlink(missing_ok=True)
        for number, name in ((1, ".out"), (2, ".err")):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        watch = toy_kills.watched(Path(ask["watch"]), ask["at"], ask["delay"])
        code = _ended(main, ask["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        Path(".count").write_text(str(watch.seen))
    finally:
        os._exit(code or 0)


def _ended(main: Any, arguments: list[str]) -> int:
    import traceback

    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:  # what Python itself would print
        traceback.print_exc()
        return 1
