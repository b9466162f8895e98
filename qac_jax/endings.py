"""How a command ends: its exit code, and one sentence for everything that its user can act on.

A full disk, a signal, missing rights or memory may show anywhere, also inside of libraries that
raise errors of their own: they are recognised here, in one place.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from qac_jax.errors import Interrupted, UserError
from qac_jax.pipeline import impatience
from qac_jax.progress import plain


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
# What libraries (ArrayRecord, safetensors, Orbax, ScaNN) say, whose errors have no number.
_FULL_SAYS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "StorageFull",
    "os error 28",
    "os error 27",
    "os error 122",
)
# numpy, when a file cannot grow.
_CUT_OFF = re.compile(r"(\d+) requested and (\d+) written")
_STORES = ("gs://", "s3://")
_CONTINUES = "what is finished is kept, and the same command continues"
_LONGEST = 1000  # characters of a sentence


def run(work: Callable[[], int], *, own_process: bool = False, serves: bool = False) -> int:
    """Does the work and returns the exit code; errors of ours become a sentence on stderr.

    `own_process`: nothing else runs in this process, so that it ends at once after a signal, and
    after a second one even where the first is not taken. `serves`: it takes them in its own way.
    """
    try:
        with _plain_output(), _quiet_threads(), _impatience(own_process and not serves):
            return _ended(work, own_process)
    except Interrupted as stop:  # while the contexts begin or end
        return _stopped(str(stop), stop.exit_code, own_process)


def _ended(work: Callable[[], int], own_process: bool) -> int:
    try:
        return work()
    except UserError as error:
        return _say(str(error), error.exit_code)
    except Interrupted as stop:
        return _stopped(str(stop), stop.exit_code, own_process)
    except KeyboardInterrupt:
        return _stopped("interrupted", 130, own_process)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        sentence = _circumstance(error)
        if sentence is None:
            raise
        return _say(sentence, 2)


def _impatience(own_process: bool) -> contextlib.AbstractContextManager[None]:
    """A second signal ends a process of ours at once, whatever it is doing."""
    if not own_process:
        return contextlib.nullcontext()

    def say(sentence: str) -> None:
        _say(sentence, 0)

    def end(number: int) -> None:
        _say(f"ended by {signal.Signals(number).name}; {_CONTINUES}", 128 + number)
        _leave(128 + number)

    return impatience.two_signals_end(say, end)


def _stopped(why: str, code: int, own_process: bool) -> int:
    if own_process:  # an impatient second signal finds the end under way
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    _say(f"{why}; {_CONTINUES}", code)
    if own_process and "jax" in sys.modules:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """Ends the process at once, also while a computation runs that nobody waits for any more.

    The interpreter would take down what JAX's threads are using, and die of it.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, or one that it comes from, says that nothing more can be written."""
    return any(
        (isinstance(e, OSError) and e.errno in _FULL)
        or any(says in str(e)[:10_000] for says in _FULL_SAYS)
        or _CUT_OFF.search(str(e)[:1000]) is not None
        for e in _chain(error)
    )


def _circumstance(error: Exception) -> str | None:
    """What is wrong around the program, as a sentence; None: with the program."""
    if is_full_disk(error):
        names = [e.filename for e in _chain(error) if isinstance(e, OSError)]
        where = next(filter(None, names), "")
        return (
            f"the disk is full while writing {where or 'the output folder'}; free space and run "
            "the command again"
        )
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({error or 'for the next object'}); use a smaller batch, "
            "shorter texts or fewer workers"
        )
    theirs = type(error).__module__.startswith(("tensorflow", "etils", "fsspec"))
    if theirs and any(store in str(error)[:10_000] for store in _STORES):
        why = str(error).strip().split("\n")[0]
        return f"a store cannot be read or written ({why}); check its address and your rights"
    if not isinstance(error, OSError):
        return None
    where = error.filename or "the output folder"
    if error.errno in _NO_ACCESS:
        return f"no permission for {where} ({error.strerror}); choose another folder"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({where}); raise the limit with `ulimit -n 4096`"
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR):
        return f"{where} cannot be used ({error.strerror}); choose another path"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    left: BaseException | None = error
    while left is not None and left not in seen:
        seen.append(left)
        yield left
        left = left.__cause__ or left.__context__


def _say(sentence: str, code: int) -> int:
    line = plain(" ".join(sentence.split()))
    if len(line) > _LONGEST:
        half = _LONGEST // 2
        line = f"{line[:half]} … {line[-half:]}"
    print(f"qac: {line}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _plain_output() -> Iterator[None]:
    """Texts of others are printed without what would steer the terminal."""
    stream = sys.stdout
    sys.stdout = _Plain(stream)
    try:
        yield
    finally:
        sys.stdout = stream


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """What threads of libraries raise reaches the main thread; a full disk is no bug to print.

    Orbax logs it too, as it does a signal that finds it waiting, and TensorStore's threads, which
    are not Python's, print that nobody listens to their result any more.
    """

    def hook(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is None or not is_full_disk(failed.exc_value):
            before(failed)

    def foreign(failed: Any) -> None:
        if str(failed.exc_value) != "Event loop is closed":
            printed(failed)

    def news(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not (isinstance(error, Interrupted) or is_full_disk(error))

    log = logging.getLogger("absl")
    log.addFilter(news)
    before, threading.excepthook = threading.excepthook, hook
    printed, sys.unraisablehook = sys.unraisablehook, foreign
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = printed, before
        log.removeFilter(news)


class _Plain:
    """A stream that writes control characters as their escapes, which JSON reads too."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(plain(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
