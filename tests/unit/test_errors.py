"""How a command ends: an exit code, and one sentence for everything that its user can act on."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from qac_jax import progress
from qac_jax.errors import Interrupted, UserError, exit_code
from qac_jax.processes import interruptible


FULL: list[BaseException] = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/x"),
    RuntimeError(
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "" })'
    ),
    OSError("7680 requested and 992 written"),
    RuntimeError("RESOURCE_EXHAUSTED: write failed: Disk quota exceeded"),
]


def raises(error: BaseException, cause: BaseException | None = None) -> int:
    raise error from cause


def test_circumstances_are_sentences_and_bugs_are_not(capsys):
    outer = ValueError("the writer of shards failed")
    for error, cause, sentence in (
        *((outer, error, "the disk is full while writing ") for error in FULL),
        (OSError(errno.EACCES, "denied", "out"), None, "no permission for out (denied); choose"),
        (MemoryError(), None, "there is not enough memory (for the next object); use a smaller"),
    ):
        assert exit_code(partial(raises, error, cause)) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"qac: {sentence}") and said.count("\n") == 1
    with pytest.raises(ValueError, match="a bug"):
        exit_code(lambda: raises(ValueError("a bug")))


def test_terminal_escapes_are_printed_as_text(capsys):
    escape = "\x1b]0;owned\x07\x1b[31mred\x9b1m"
    progress.say(f"reading {escape}")
    assert exit_code(lambda: raises(UserError(f"{escape} is not a file"))) == 2
    said = capsys.readouterr().err
    assert not set(said) & set("\x1b\x07\x9b") and said.count("\\u001b[31mred") == 2


def test_what_is_left_is_told_without_the_first_items_which_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = progress.Bar("embed", 10, stream=io.StringIO())
    bar.skip(2)
    now[0] = 100.0
    bar.advance(2)
    assert "ETA" not in bar.state()
    now[0] = 103.0
    bar.advance(3)
    assert "7/10 items (70%)" in bar.state() and "ETA 0:03" in bar.state()


def test_a_signal_that_a_library_swallows_ends_the_next_stage():
    """Imports are full of `except Exception`, and some take everything."""
    with pytest.raises(Interrupted), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            pass
        with interruptible():
            raise AssertionError("the stage began")
    with interruptible(), interruptible():
        pass  # the next command is not concerned


# Closes files for minutes after the first signal.
SLOW = """
import time
from qac_jax.processes import interruptible
with interruptible():
    try:
        print("+", flush=True)
        time.sleep(60)
    finally:
        print("-", flush=True)
        time.sleep(60)
"""


def test_a_second_signal_ends_a_process_at_once() -> None:
    words = [sys.executable, "-c", SLOW]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as slow:
        assert slow.stdout is not None
        for sign in ("+\n", "-\n"):
            assert slow.stdout.readline() == sign
            slow.send_signal(signal.SIGTERM)
        assert slow.wait(20) == -signal.SIGTERM
