"""Runs `make(step)` ahead of its consumer: in a thread (grain's where it is installed, or our own)
or in processes. All deliver make(start), make(start + 1)… in this order, so it does not matter
which one runs.

Processes hand batches over in shared memory: they take turns with runs of consecutive steps, and
each owns a few slots of the size of a batch. (grain's processes make one shared object for every
array of every batch, and leave some behind when they are stopped early.)
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import itertools
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import numpy as np

from qac_jax.errors import UserError, nearest


Batch = dict[str, np.ndarray]
Spec = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class Make(Protocol):
    """Makes the batch of any step; is pickled for worker processes."""

    @property
    def run(self) -> int:
        """The number of consecutive batches that one process should make."""

    @property
    def spec(self) -> Spec:
        """Shape and type of every array."""

    def __call__(self, step: int) -> Batch: ...


# What makes batches: grain or our own thread ("auto": grain where it is installed), or seqio.
FEEDS = ("auto", "grain", "plain", "seqio")

_ALIGNMENT = 64
_PATIENCE = 1.0  # seconds between checks that the parent process is alive
_GRACE = 5.0


def usual(accelerators: int, spec: Spec, prefetch: int) -> int:
    """The processes that feed this host's accelerators: one makes 27,000 to 46,000 examples a
    second, and two of the fastest devices train on 7,000. None where there are no cores for them,
    or shared memory has no room (containers often have 64 MB)."""
    wanted = min(-(-accelerators // 2), (os.cpu_count() or 2) // 2)
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return wanted
    free = room.f_bavail * room.f_frsize // 2
    return min(wanted, free // (max(1, prefetch) * _size(spec)))


class ProcessFeed:
    """make(start), make(start + 1)… before stop, made by `workers` processes."""

    def __init__(self, make: Make, start: int, stop: int | None, prefetch: int, workers: int):
        context = multiprocessing.get_context("spawn")  # forking a process with threads is unsafe
        self._run, self._next, self._stop = make.run, start, stop
        self._closed = False
        self._ending = context.Event()
        self._lines: list[tuple[Any, Any, Any, SharedMemory, list[Batch]]] = []
        slots = max(1, prefetch)
        try:
            for number in range(workers):
                self._start(context, make, (start, stop, number, workers), slots)
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, make: Make, turn: tuple[Any, ...], slots: int) -> None:
        memory = SharedMemory(create=True, size=slots * _size(make.spec))
        free = context.Semaphore(slots)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_work,
            args=(make, turn, memory.name, slots, free, self._ending, sender),
            name=f"loader-{turn[2]}",
            daemon=True,
        )
        views = _views(memory, make.spec, slots)
        self._lines.append((process, receiver, free, memory, views))
        process.start()
        sender.close()  # so that a dead worker shows as the end of the pipe

    def __iter__(self) -> ProcessFeed:
        return self

    def __next__(self) -> Batch:
        if self._closed or (self._stop is not None and self._next >= self._stop):
            raise StopIteration
        line = self._lines[self._next // self._run % len(self._lines)]
        process, receiver, free, _, views = line
        try:
            slot, user_error, error = receiver.recv()
        except EOFError:
            process.join(_GRACE)
            self.close()
            raise RuntimeError(
                f"loader process {process.name} ended with code {process.exitcode} "
                f"(a negative one is a signal; -9 often means that memory ran out)"
            ) from None
        if slot is None:
            self.close()
            raise UserError(user_error) if user_error else RuntimeError(error)
        batch = {name: np.array(view) for name, view in views[slot].items()}
        free.release()
        self._next += 1
        return batch

    def close(self) -> None:
        """Ends the processes and frees the shared memory."""
        if self._closed:
            return
        self._closed = True
        self._ending.set()
        for _, receiver, free, _, _ in self._lines:
            free.release()
            receiver.close()
        for process, *_ in self._lines:
            if process.pid is not None:  # else it could not be started
                process.join(_GRACE)
            if process.is_alive():
                process.terminate()
                process.join()
        lines, self._lines = self._lines, []
        for _, _, _, memory, views in lines:
            views.clear()
            memory.close()
            memory.unlink()


def _work(make, turn, memory_name, slots, free, ending, sender) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    gc.disable()  # examples have no cycles, and the collector takes a tenth of the time
    parent = os.getppid()
    memory = SharedMemory(memory_name)
    views = _views(memory, make.spec, slots)
    slot = 0
    try:
        for step in _steps(*turn, run=make.run):
            batch = make(step)
            while not free.acquire(timeout=_PATIENCE):
                if os.getppid() != parent:
                    return
            if ending.is_set():
                return
            for name, view in views[slot].items():
                view[...] = batch[name]
            sender.send((slot, "", ""))
            slot = (slot + 1) % slots
    except BrokenPipeError:
        return  # the consumer closed
    except UserError as error:
        _tell(sender, (None, str(error), ""))
    except Exception:
        _tell(sender, (None, "", "in a loader process:\n" + traceback.format_exc()))
    finally:
        views.clear()
        memory.close()


def _steps(start: int, stop: int | None, number: int, workers: int, *, run: int) -> Iterator[int]:
    """The steps of worker `number`: every `workers`-th run of steps."""
    for first in itertools.count(start // run * run, run):
        if stop is not None and first >= stop:
            return
        if first // run % workers == number:
            last = first + run if stop is None else min(first + run, stop)
            yield from range(max(first, start), last)


def _tell(sender: Any, message: tuple[None, str, str]) -> None:
    try:
        sender.send(message)
    except BrokenPipeError:
        pass


def _views(memory: SharedMemory, spec: Spec, slots: int) -> list[Batch]:
    """The arrays of every slot."""
    size, views = _size(spec), []
    for slot in range(slots):
        place, arrays = slot * size, {}
        for name, (shape, dtype) in spec.items():
            arrays[name] = np.ndarray(shape, dtype, memory.buf, place)
            place += _room(shape, dtype)
        views.append(arrays)
    return views


def _size(spec: Spec) -> int:
    return sum(_room(shape, dtype) for shape, dtype in spec.values())


def _room(shape: tuple[int, ...], dtype: np.dtype) -> int:
    used = int(np.prod(shape)) * dtype.itemsize
    return -(-max(used, 1) // _ALIGNMENT) * _ALIGNMENT


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
