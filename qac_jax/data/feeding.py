"""Runs `make(step)` ahead of its consumer: through grain where it is installed, or plainly.

Both deliver make(start), make(start + 1)… in this order, so it does not matter which one runs.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from qac_jax.errors import UserError, nearest


Batch = dict[str, Any]
Make = Callable[[int], Batch]

BACKENDS = ("auto", "grain", "plain")
# "Endless" for grain, which wants a length.
_FOREVER = 1 << 60


class Feed(Protocol):
    """An iterator of batches that can be told to stop working ahead."""

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch: ...

    def close(self) -> None: ...


def choose(backend: str) -> str:
    """The backend that "auto" stands for here."""
    if backend not in BACKENDS:
        raise UserError(f"backend {backend!r} is not known; {nearest(backend, BACKENDS)}")
    installed = importlib.util.find_spec("grain") is not None
    if backend == "grain" and not installed:
        raise UserError("backend 'grain' needs the package grain; pip install grain, or use 'auto'")
    return ("grain" if installed else "plain") if backend == "auto" else backend


def feed(
    make: Make, start: int, stop: int | None, *, backend: str, prefetch: int, workers: int
) -> Feed:
    """Batches start, start + 1, … before stop (None: endless)."""
    if choose(backend) == "grain":
        return GrainFeed(make, start, stop, prefetch, workers)
    return PlainFeed(make, start, stop, prefetch)


class PlainFeed:
    """One thread makes up to `prefetch` batches ahead; with 0, they are made when asked for."""

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
        """Lets the thread end."""
        self._closed.set()
        if self._ready is not None:
            while self._thread.is_alive():
                try:  # it may be waiting for a place
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
    """grain reads ahead in a thread, or in `workers` processes that pass batches in shared memory."""

    def __init__(self, make: Make, start: int, stop: int | None, prefetch: int, workers: int):
        import grain
        from absl import flags

        steps = grain.MapDataset.source(_Steps(make, start, stop))
        ahead = max(prefetch, 1)
        read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=ahead)
        if workers or not prefetch:
            read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        dataset = steps.to_iter_dataset(read)
        if workers:
            if not flags.FLAGS.is_parsed():  # grain reads absl's flags, also where nobody set any
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=ahead)
            dataset = dataset.mp_prefetch(options)
        self._iterator = iter(dataset)
        self._closed = False

    def __iter__(self) -> GrainFeed:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        return next(self._iterator)

    def close(self) -> None:
        """Ends threads and worker processes."""
        if not self._closed:
            self._closed = True
            self._iterator.close()
