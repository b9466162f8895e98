"""Runs `make(step)` ahead of its consumer: in a thread (grain's where it is installed, or our own)
or in processes. (Batches through seqio's own pipeline are made in `seqio_feed.py`.)

All deliver make(start), make(start + 1)… in this order, so it does not matter which one runs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import queue
import threading
from collections.abc import Iterator
from typing import Protocol

from qac_jax.data.reading import FEEDS
from qac_jax.data.workers import Batch, Make, ProcessFeed
from qac_jax.errors import UserError, nearest


SEQIO = "seqio"
# "Endless" for grain, which wants a length.
_FOREVER = 1 << 60


class Feed(Protocol):
    """An iterator of batches that works ahead until it is closed."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch: ...

    def close(self) -> None: ...


def choose(backend: str) -> str:
    """The backend that "auto" stands for here."""
    if backend not in FEEDS:
        raise UserError(f"backend {backend!r} is not known; {nearest(backend, FEEDS)}")
    installed = importlib.util.find_spec("grain") is not None
    if backend == "grain" and not installed:
        raise UserError("backend 'grain' needs the package grain; pip install grain, or use 'auto'")
    return ("grain" if installed else "plain") if backend == "auto" else backend


@dataclasses.dataclass(frozen=True)
class Ahead:
    """How batches are made ahead of their consumer."""

    backend: str
    prefetch: int = 2
    workers: int = 0


def feed(make: Make, start: int, stop: int | None, ahead: Ahead) -> Feed:
    """Batches start, start + 1, … before stop (None: endless)."""
    if ahead.workers:
        return ProcessFeed(make, start, stop, ahead.prefetch, ahead.workers)
    if ahead.backend == "grain":
        return GrainFeed(make, start, stop, ahead.prefetch)
    return PlainFeed(make, start, stop, ahead.prefetch)


class PlainFeed:
    """One thread makes up to `prefetch` batches ahead; with 0, each is made on demand."""

    def __init__(self, make: Make, start: int, stop: int | None, prefetch: int):
        self._make, self._next, self._stop = make, start, stop
        self._ready: queue.Queue[tuple[Batch | None, BaseException | None]] | None = None
        self._closed = threading.Event()
        if prefetch:
            self._ready = queue.Queue(prefetch)
            self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
            self._thread.start()

    def __iter__(self) -> PlainFeed:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set() or (self._stop is not None and self._next >= self._stop):
            raise StopIteration
        step, self._next = self._next, self._next + 1
        if self._ready is None:
            return self._make(step)
        batch, error = self._ready.get()
        if batch is None:
            self.close()
            raise error if error is not None else StopIteration
        return batch

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if self._ready is not None:
            while self._thread.is_alive():
                try:  # it may be waiting for a free place in the queue
                    self._ready.get_nowait()
                except queue.Empty:
                    self._thread.join(0.05)

    def _work(self) -> None:
        assert self._ready is not None
        step = self._next
        while not self._closed.is_set() and (self._stop is None or step < self._stop):
            try:
                self._ready.put((self._make(step), None))
            except BaseException as error:  # noqa: BLE001 - raised again by the consumer
                self._ready.put((None, error))
                return
            step += 1


class _Steps:
    """A sequence whose items are batches, as grain's source."""

    def __init__(self, make: Make, start: int, stop: int | None):
        self._make, self._start = make, start
        self._length = _FOREVER if stop is None else max(stop - start, 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Batch:
        return self._make(self._start + number)


class GrainFeed:
    """grain reads ahead in a thread."""

    def __init__(self, make: Make, start: int, stop: int | None, prefetch: int):
        import grain

        steps = grain.MapDataset.source(_Steps(make, start, stop))
        options = grain.ReadOptions(num_threads=min(prefetch, 1), prefetch_buffer_size=prefetch)
        self._iterator = iter(steps.to_iter_dataset(options))
        self._closed = False

    def __iter__(self) -> GrainFeed:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        return next(self._iterator)

    def close(self) -> None:
        """Ends the thread."""
        if not self._closed:
            self._closed = True
            self._iterator.close()
