"""Errors a user can act on: one sentence and an exit code, no traceback.

A full disk, a signal, missing rights or memory may show anywhere, also inside of libraries that
raise errors of their own: `exit_code` recognises them, in one place for all commands.
"""

import contextlib
import difflib
import errno
import functools
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any


# Names that a sentence lists, characters of a value in it, and of the whole sentence.
_MOST, _LONG, _LONGEST = 30, 200, 1000
# C0 and C1 controls, DEL, and halves of surrogate pairs, which cannot be printed at all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Where an object lies, as Python shows functions and what has no text of its own.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Of libraries (ArrayRecord, safetensors, Orbax, ScaNN) whose errors have no number, and of numpy,
# when a file cannot grow.
_FULL_SAYS = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|StorageFull|os error (28|27|122)"
    r"|\d+ requested and \d+ written"
)


class UserError(Exception):
    """A fault that its user can mend: the wrong value, what was expected, what to do. Code 2."""

    exit_code = 2


class Busy(UserError):
    """Another process is writing the same folder."""


class DataError(UserError):
    """Bad input data; names the file and, where there is one, the line."""

    def __init__(self, message: str, *, file: object, line: int | None = None):
        self.message, self.file, self.line = message, str(file), line
        place = f"{file}:{line}" if line is not None else f"{file}"
        super().__init__(f"{place}: {message}")

    def __reduce__(self) -> Any:
        return functools.partial(DataError, self.message, file=self.file, line=self.line), ()


class Interrupted(BaseException):
    """A stage was interrupted (SIGINT, SIGTERM); finished files are kept.

    Like KeyboardInterrupt, it is not among what `except Exception` takes for a failure.
    """

    def __init__(self, signal_number: int):
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
        super().__init__(f"interrupted by signal {signal_number}")


@contextlib.contextmanager
def sound(file: object, remedy: str = "make it again") -> Iterator[None]:
    """One sentence about a file in which something else stands than is read in here."""
    wrong = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
    try:
        yield
    except (*wrong, EOFError) as error:
        why = f"({type(error).__name__}: {str(error)[:_LONG]})"
        raise UserError(f"{file} is not what it should be {why}; {remedy}") from error


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a sentence: the closest valid name, or the list of them."""
    name, names = str(name)[:200], sorted(set(valid))  # gin checks no types
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
    return f"valid names: {', '.join(names[:_MOST])}{more}" if names else "there are no valid names"


def short(text: str, most: int = _LONG) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(value: object) -> str:
    """A value as a sentence may show it: short, the same in every process."""
    return short(_ADDRESS.sub("", repr(value)))


def plain(text: str) -> str:
    """The text with control characters (but tab and newline) as escapes: on a terminal they would
    move, colour, rename or hide things."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def exit_code(work: Callable[[], int], *, own_process: bool = False) -> int:
    """Does the work of a command; errors that its user can act on become a sentence on stderr.

    `own_process`: nothing else runs in this process, so that it ends at once after a signal.
    """
    try:
        code = work()
        if sys.stdout is not None:  # here, where a reader that has gone is no fault
            sys.stdout.flush()
        return code
    except UserError as error:
        return _say(str(error), error.exit_code)
    except (Interrupted, KeyboardInterrupt) as stop:
        why = f"{stop}" or "interrupted"
        code = stop.exit_code if isinstance(stop, Interrupted) else 130
        _say(f"{why}; what is finished is kept, and the same command continues", code)
        if own_process and "jax" in sys.modules:
            # Computations run that nobody waits for any more. The interpreter would take down what
            # JAX's threads are using, and die of it.
            for child in multiprocessing.active_children():
                child.terminate()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        sentence = _circumstance(error)
        if sentence is None:
            raise
        return _say(sentence, 2)


def _circumstance(error: Exception) -> str | None:
    """A fault outside of the program, as a sentence; None if the program itself is wrong."""
    causes: list[BaseException] = []
    left: BaseException | None = error
    while left is not None and left not in causes:
        causes.append(left)
        left = left.__cause__ or left.__context__
    system = [cause for cause in causes if isinstance(cause, OSError)]
    said = [str(cause)[:10_000] for cause in causes]
    where = next((cause.filename for cause in system if cause.filename), "the output folder")
    if any(cause.errno in _FULL for cause in system) or any(map(_FULL_SAYS.search, said)):
        return f"the disk is full while writing {where}; free space and run the command again"
    if isinstance(error, MemoryError):
        why = str(error) or "for the next object"
        return f"there is not enough memory ({why}); use a smaller batch or fewer workers"
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission for {where} ({error.strerror}); choose another folder"
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR):
        return f"{where} cannot be used ({error.strerror}); choose another path"
    return None


def _say(sentence: str, code: int) -> int:
    line = plain(" ".join(sentence.split()))
    if len(line) > _LONGEST:
        half = _LONGEST // 2
        line = f"{line[:half]} … {line[-half:]}"
    print(f"qac: {line}", file=sys.stderr)
    return code
