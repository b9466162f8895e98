"""A second signal ends a command that is inside of a library, where Python takes none."""

from __future__ import annotations

import signal
import subprocess
import sys
import time


# Works in C for minutes, without the interpreter's lock, as XLA compiles.
BUSY = """
import hashlib, sys
from qac_jax import cli

def compiles(arguments):
    print("+", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
    return 0

cli._dispatch = compiles
sys.exit(cli.main())
"""


def test_a_second_signal_ends_what_cannot_take_the_first() -> None:
    words = [sys.executable, "-c", BUSY, "prepare"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None and busy.stdout.read(1) == "+"
        time.sleep(0.1)
        busy.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert busy.poll() is None
        busy.send_signal(signal.SIGTERM)
        error = busy.communicate(timeout=60)[1]
    assert busy.returncode == 128 + signal.SIGTERM
    lines = error.splitlines()
    assert lines[0].startswith("qac: SIGTERM waits for what is being compiled")
    assert lines[1].startswith("qac: ended by SIGTERM; what is finished is kept")
    assert len(lines) == 2
