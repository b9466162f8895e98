"""Errors a user can act on: one sentence, no traceback (DESIGN.md, "Errors")."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


# Names that a sentence lists, and characters of a value in it.
_MOST, _LONG = 30, 200
# Where an object lies, as Python shows functions and what has no text of its own.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class UserError(Exception):
    """What is wrong with which value; what was expected; what to do. Exit code 2."""

    exit_code = 2


class Busy(UserError):
    """Another process is writing the same folder."""


class DataError(UserError):
    """Bad input data; names the file and, where there is one, the line."""

    def __init__(self, message: str, *, file: object, line: int | None = None):
        self.message, self.file, self.line = message, str(file), line
        place = f"{file}:{line}" if line is not None else f"{file}"
        super().__init__(f"{place}: {message}")


class Interrupted(BaseException):
    """A stage was interrupted (SIGINT, SIGTERM); finished files are kept.

    Like KeyboardInterrupt, it is not among what `except Exception` takes for a failure.
    """

    def __init__(self, signal_number: int):
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
        super().__init__(f"interrupted by signal {signal_number}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a sentence: the closest valid name, or the list of them."""
    name = str(name)[:200]  # gin checks no types
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = difflib.get_close_matches(name, names, n=_MOST, cutoff=0.0)
    more = f" and {len(names) - len(shown)} others" if len(names) > len(shown) else ""
    return f"valid names: {', '.join(sorted(shown))}{more}" if names else "there are no valid names"


def shown(value: object) -> str:
    """A value as a sentence may show it: short, the same in every process."""
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
