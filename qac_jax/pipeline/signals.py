"""Signals while a stage runs: files are closed in order, and what is finished is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from qac_jax import processes
from qac_jax.errors import Interrupted


_depth = 0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM end the block with `Interrupted`, so that files are closed in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _depth
    if _depth == 0:
        processes.received.clear()
    elif processes.received:
        raise Interrupted(processes.received[-1])

    def stop(number: int, _: object) -> None:
        processes.received.append(number)
        raise Interrupted(number)

    def again(ignored: Any) -> None:
        # Raised where Python ignores exceptions, such as in JAX's callback of the garbage
        # collector: the signal is sent again from a timer.
        if isinstance(ignored.exc_value, Interrupted):
            number = ignored.exc_value.signal_number
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        else:
            hook(ignored)

    hook, sys.unraisablehook = sys.unraisablehook, again
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
