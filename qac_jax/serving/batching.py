"""Requests that come at about the same time are answered by one call of the model.

While a batch runs, the next one gathers. It starts when as many are there as were in the last one
and waited behind it, or a few milliseconds later: a single client never waits, and many who ask
again and again are answered together, not in two halves by turns. What is more than the queue holds
is refused at once, so that waiting stays short.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from qac_jax.serving import problems


T = TypeVar("T")
R = TypeVar("R")


class _Waiting(NamedTuple):
    item: object
    size: int
    answer: asyncio.Future[object]


class Batcher(Generic[T, R]):
    """`work` answers the items of a batch in a thread of its own, one batch at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R | Exception]],
        *,
        most: int,
        wait: float,
        queue: int,
        seen: Callable[[int, float], None] = lambda size, seconds: None,
    ):
        self._work, self._most, self._wait, self._queue = work, most, wait, queue
        self._seen = seen
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._more = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batch")
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        self._clients = 1  # how much came together lately

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def submit(self, item: T, size: int = 1) -> R:
        """The answer to an item; `size`: how much of a batch it fills."""
        if self._closed:
            raise problems.stopping()
        if len(self._waiting) >= self._queue:
            raise problems.busy()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, size, answer))
        self._more.set()
        return await answer  # type: ignore[return-value]

    async def close(self) -> None:
        """Answers what waits; takes nothing more."""
        self._closed = True
        while self._waiting or (self._loop is not None and not self._loop.done()):
            self._more.set()
            if self._loop is None or self._loop.done():
                break
            await asyncio.wait([self._loop], timeout=0.05)
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                if self._closed:
                    return
                self._more.clear()
                await self._more.wait()
            await self._gather()
            batch = self._taken()
            if not batch:
                continue
            size = sum(waiting.size for waiting in batch)
            began = time.perf_counter()
            loop = asyncio.get_running_loop()
            try:
                items: list[T] = [waiting.item for waiting in batch]  # type: ignore[misc]
                answers = list(await loop.run_in_executor(self._thread, self._work, items))
            except Exception as error:  # the work's own: every request of the batch gets it
                answers = [error] * len(batch)
            self._clients = size + sum(waiting.size for waiting in self._waiting)
            self._seen(size, time.perf_counter() - began)
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():  # its client has gone
                    continue
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)

    async def _gather(self) -> None:
        """Waits for a batch to fill, but not for long."""
        end = asyncio.get_running_loop().time() + self._wait
        enough = min(self._clients, self._most)
        while sum(waiting.size for waiting in self._waiting) < enough and not self._closed:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), left)

    def _taken(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and (not batch or size + self._waiting[0].size <= self._most):
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
                size += waiting.size
        return batch
