"""Errors a user can act on: one sentence, no traceback (DESIGN.md, "Errors")."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


# Names that a sentence lists.
_MOST = 30


class UserError(Exception):
    """What is wrong with which value; what was expected; what to do. Exit code 2."""

    exit_code = 2


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
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = difflib.get_close_matches(name, names, n=_MOST, cutoff=0.0)
    more = f" and {len(names) - len(shown)} others" if len(names) > len(shown) else ""
    return f"valid names: {', '.join(sorted(shown))}{more}" if names else "there are no valid names"
