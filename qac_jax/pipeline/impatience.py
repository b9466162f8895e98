"""A second signal ends a process whose first one waits.

Python runs the handler of a signal between two of its own instructions, so a signal waits as long
as the main thread is inside of a library: XLA may compile for minutes. `set_wakeup_fd` lets a
thread know of it at once. Ending the process there loses nothing, as SIGKILL would not: what is
finished is in the journal, and commits are atomic.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator


# Seconds in which a main thread that can take a signal has done so.
_SOON = 1.0
_ours = False


@contextlib.contextmanager
def two_signals_end(say: Callable[[str], None], end: Callable[[int], None]) -> Iterator[None]:
    """Within the block, `end(number)` is called in a thread at a second SIGINT or SIGTERM that the
    main thread does not take; `say` is given a sentence at the first.

    For processes whose handlers raise: of one that returns, nothing can be seen from outside.
    """
    global _ours
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    if (other := signal.set_wakeup_fd(write, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(other)  # an event loop has it
        for descriptor in (read, write):
            os.close(descriptor)
        yield
        return
    _ours = True
    main = threading.get_ident()
    threading.Thread(target=_watch, args=(read, main, say, end), daemon=True).start()
    try:
        yield
    finally:
        _ours = False
        signal.set_wakeup_fd(-1)
        os.close(write)  # which ends the thread


def _watch(read: int, main: int, say: Callable[[str], None], end: Callable[[int], None]) -> None:
    count = 0
    with contextlib.closing(os.fdopen(read, "rb", buffering=0)) as pipe:
        while numbers := pipe.read(1):
            if numbers[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            count += 1
            before = _place(main)
            # Another signal need not wait for this one's time to be over.
            select.select([pipe], [], [], _SOON)
            if before is None or _place(main) != before:
                count = 0
            elif count > 1:
                end(numbers[0])
            else:
                name = signal.Signals(numbers[0]).name
                say(
                    f"{name} waits for what is being compiled or computed; send it again to end "
                    "at once"
                )


def _place(main: int) -> tuple[int, int] | None:
    """Where the main thread is: it stays there while a library works."""
    frame = sys._current_frames().get(main)
    return None if frame is None else (id(frame), frame.f_lasti)


def _in_child() -> None:
    # A worker that gets Ctrl-C with its parent would be a second signal.
    if _ours:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)
