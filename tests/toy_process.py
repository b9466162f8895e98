"""The command line here, and in a process of its own with the toy stages as verbs; a bound of
time."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qac_jax import cli


class Qac:
    """The command line in this process: the fixture `qac`."""

    def __init__(self, capture: pytest.CaptureFixture[str]):
        self._capture = capture

    def _ended(self, code: int, words: tuple[object, ...]) -> Any:
        self._capture.readouterr()  # is not this command's
        ended = cli.main([*map(str, words)])
        said = self._capture.readouterr()
        assert ended == code, said.err
        return said

    def __call__(self, *words: object) -> Any:
        """What it prints, as `out` and `err`."""
        return self._ended(0, words)

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json").out)

    def refused(self, *words: object) -> str:
        """The one sentence by which it refuses."""
        said = self._ended(2, words).err.strip()
        assert said.count("qac: ") == 1 and "Traceback" not in said
        sentence = said.split("\n")[-1]
        assert sentence.startswith("qac: ")
        return sentence


def devices(count: int = 1, **changes: str) -> dict[str, str]:
    """The environment for a process with as many devices, else as this one's."""
    flags = re.sub(r"(_platform_device_count)=\d+", rf"\1={count}", os.environ["XLA_FLAGS"])
    return {**os.environ, "XLA_FLAGS": flags, **changes}


# Prints each command after a mark, then what it prints.
_ONE_AFTER_THE_OTHER = """
import shlex, sys
from qac_jax import cli
for command in sys.stdin.read().splitlines():
    print(command, file=sys.stderr)
    print("\x1e" + command)
    if code := cli.main(shlex.split(command)[1:]):
        sys.exit(code)
"""


def said(
    commands: Sequence[str], folder: Path, environment: dict[str, str], python: str = sys.executable
) -> dict[str, str]:
    """What each command printed. They run in one process, since starting many would take longer
    than what they do."""
    done = subprocess.run(
        [python, "-c", _ONE_AFTER_THE_OTHER],
        input="\n".join(commands),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(part.split("\n", 1) for part in done.stdout.split("\x1e")[1:])


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The same command line in a process of its own, with the toy stages as verbs."""
    code = (
        "import sys; from qac_jax import cli\n"
        "cli.VERBS['numbers'] = cli.Verb('numbers', 'toy_stages:Numbers', '')\n"
        "sys.exit(cli.main())"
    )
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def kill_when(ready: Callable[[], bool], *arguments: object) -> None:
    """Starts the command line and kills it as soon as something can be seen of it."""
    process = start(*arguments)
    deadline = time.monotonic() + 200
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()[1]
    process.kill()
    process.communicate()


@contextlib.contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """At most so much CPU time; pytest's timeout ends what does not look at signals."""

    def late(*_: object) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's about the literals of strangers
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
