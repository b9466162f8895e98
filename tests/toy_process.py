"""The command line in a process of its own, with the toy stages as verbs; a bound of time."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


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
