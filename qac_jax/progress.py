"""Progress: a bar with rate and ETA on a terminal, one line a minute elsewhere.

Everything goes to stderr: stdout belongs to results.
"""

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, Self

from qac_jax.errors import plain


_BAR_WIDTH = 24
_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 60.0

_silent = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppresses messages and progress bars in the block, for use as a library."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def say(text: str) -> None:
    """Prints one line for the user."""
    if not _silent.get():
        print(plain(text), file=sys.stderr, flush=True)


def human(number: float, unit: str = "") -> str:
    """1234567 -> 1.23M."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{suffix}{unit}"
    return f"{number:.4g}{unit}"


def human_seconds(seconds: float) -> str:
    """3725 -> 1:02:05."""
    whole = int(round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


class Bar:
    """Counts items towards a total (None: unknown) and shows rate, ETA and figures."""

    def __init__(
        self,
        label: str,
        total: int | None = None,
        unit: str = "items",
        stream: IO[str] | None = None,
    ):
        self.label, self.total, self.unit = label, total, unit
        self.count = 0
        self._skipped = 0
        self._first: tuple[int, float] | None = None
        self._figures: dict[str, float] = {}
        self._stream = stream if stream is not None else sys.stderr
        terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._start = self._shown = time.monotonic()
        self._meter = _meter(self, self._stream) if terminal and not _silent.get() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._meter is not None:
            self._meter.close()
        elif kind is None or time.monotonic() - self._start >= _LOG_SECONDS:
            self._log()

    def skip(self, count: int) -> None:
        """Counts items that an earlier run finished, which do not enter the rate."""
        self.count += count
        self._skipped += count

    def advance(self, count: int = 1, **figures: float) -> None:
        """`count` more items are done; `figures` are shown beside them."""
        self.count += count
        self._first = self._first or (self.count, time.monotonic())
        self._figures.update(figures)
        if self._meter is not None:
            self._meter.update(self.count - self._meter.n)
        elif (now := time.monotonic()) - self._shown >= _LOG_SECONDS:
            self._shown = now
            self._log()

    def state(self) -> str:
        """Count, rate, ETA (or time taken) and figures. The ETA leaves out what came before the
        first items were done, which is mostly compilation."""
        now = time.monotonic()
        elapsed = max(now - self._start, 1e-9)
        rate = (self.count - self._skipped) / elapsed
        parts = [f"{self.count:,} {self.unit}", f"{human(rate)}/s"]
        if self.total:
            share = min(self.count / self.total, 1.0)
            parts[0] = f"{self.count:,}/{self.total:,} {self.unit} ({share:.0%})"
        if self.total and self._first and self._first[0] < self.count < self.total:
            pace = (now - self._first[1]) / (self.count - self._first[0])
            parts.append(f"ETA {human_seconds(pace * (self.total - self.count))}")
        else:
            parts.append(f"in {human_seconds(elapsed)}")
        parts.extend(f"{name} {value:.4g}" for name, value in self._figures.items())
        return "  ".join(parts)

    def _log(self) -> None:
        if not _silent.get():
            print(f"{self.label}:  {self.state()}", file=self._stream, flush=True)


def _meter(bar: Bar, stream: IO[str]) -> Any:
    """tqdm draws the bar, fits it to the terminal's width and limits how often it is drawn."""
    from tqdm import tqdm

    class Meter(tqdm):
        monitor_interval = 0  # no thread beside ours: worker processes are forked

        @property
        def format_dict(self) -> dict[str, Any]:
            return {**super().format_dict, "state": bar.state()}

    try:  # tqdm draws nothing where a terminal's size is 0 × 0 (containers)
        known = all(os.get_terminal_size(stream.fileno()))
    except (OSError, ValueError):
        known = False
    size: dict[str, Any] = {"dynamic_ncols": True} if known else {"ncols": 120, "nrows": 20}
    drawn = f"{{bar:{_BAR_WIDTH}}}  " if bar.total else ""
    Meter.set_lock(threading.RLock())
    meter = Meter(
        desc=bar.label,
        total=bar.total,
        file=stream,
        bar_format=f"{{desc}}:  {drawn}{{state}}",
        mininterval=_TERMINAL_SECONDS,
        miniters=1,
        delay=1e-9,  # nothing is drawn before the first item
        **size,
    )
    meter.delay = 0  # but the last state always is
    return meter
