"""Requests that come at about the same time are answered by one call of the model.

`Batcher` gathers them: while a batch runs, the next one fills. It starts when as many are there as
were in the last one and waited behind it, or a few milliseconds later: a single client never waits,
and many who ask again and again are answered together, not in two halves by turns. What is more
than the queue holds is refused at once, so that waiting stays short.

`QueryEncoder` encodes a batch in few shapes, all compiled beforehand: XLA takes about a second for
every shape, and a server must not do so while others wait.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from fastapi import HTTPException

from qac_jax.inference.encoder import Encoder
from qac_jax.inference.runner import Batch, padded, rounded


def busy(sentence: str = "the server is busy; try again in a second") -> HTTPException:
    return HTTPException(503, sentence, {"Retry-After": "1"})


class _Waiting(NamedTuple):
    item: Any
    size: int
    answer: asyncio.Future[Any]


class Batcher:
    """`work` answers the items of a batch in a thread of its own, one batch at a time. An answer
    that is an exception is raised."""

    def __init__(
        self,
        work: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        most: int,
        wait: float,
        queue: int,
        seen: Callable[[int], object] = lambda size: None,
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

    async def submit(self, item: Any, size: int = 1) -> Any:
        """The answer to an item; `size`: how much of a batch it fills."""
        if self._closed:
            raise busy("the server is stopping; try another one")
        if len(self._waiting) >= self._queue:
            raise busy()
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, size, answer))
        self._more.set()
        return await answer

    async def close(self) -> None:
        """Answers what waits; takes nothing more."""
        self._closed = True
        self._more.set()
        if self._loop is not None:
            await self._loop
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting or not self._closed:
            # The first one; then, not for long, as many as came together lately.
            await self._until(1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait):
                    await self._until(min(self._clients, self._most))
            if not (batch := self._taken()):
                continue
            try:
                items = [waiting.item for waiting in batch]
                answers = await loop.run_in_executor(self._thread, self._work, items)
            except Exception as error:  # the work's own: every request of the batch gets it
                for waiting in batch:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
            else:
                for waiting, answer in zip(batch, answers, strict=True):
                    if waiting.answer.done():
                        pass  # its client has gone
                    elif isinstance(answer, Exception):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)
            self._clients = _sizes(batch) + _sizes(self._waiting)
            self._seen(len(batch))

    async def _until(self, enough: int) -> None:
        while _sizes(self._waiting) < enough and not self._closed:
            self._more.clear()
            await self._more.wait()

    def _taken(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and (not batch or _sizes(batch) + self._waiting[0].size <= self._most):
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
        return batch


def _sizes(waiting: Iterable[_Waiting]) -> int:
    return sum(each.size for each in waiting)


class QueryEncoder:
    """An encoder whose queries are read in few shapes, `most` at a time.

    The time of a CPU grows with its tokens, so there few of them are padding: many lengths, no
    empty rows, and no more rows than it computes as fast a row. Elsewhere calls should be few.
    """

    def __init__(self, encoder: Encoder, most: int):
        self._encoder, copies = encoder, encoder.runner.copies
        self._exact = copies == 1 and jax.default_backend() == "cpu"
        self._limit, most = encoder.limits["query"], min(most, 8) if self._exact else most
        lengths = (8, 12, 16, 20, 24, 32, 48, 64) if self._exact else (32, 64)
        self._lengths = sorted({min(length, self._limit) for length in lengths})
        self._sizes = [copies]
        while self._sizes[-1] < most:
            self._sizes.append(2 * self._sizes[-1])

    def encode(self, texts: Sequence[str], side: str = "passage") -> np.ndarray:
        """As of the encoder."""
        if side != "query":
            return self._encoder.encode(texts, side)
        rows = self._encoder.tokenize(texts, side)
        return self._computed(rows, self._batches(rows))

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[Batch]:
        groups: dict[int, list[int]] = collections.defaultdict(list)
        for number, row in enumerate(rows):
            fitting = (length for length in self._lengths if len(row) <= length)
            groups[next(fitting, rounded(len(row), self._limit))].append(number)
        for length, numbers in groups.items():
            while numbers:
                below = [size for size in self._sizes if size <= len(numbers)]
                enough = [size for size in self._sizes if size >= len(numbers)]
                size = below[-1] if self._exact or not enough else enough[0]
                yield Batch(np.array(numbers[:size]), size, length)
                del numbers[:size]

    def _computed(self, rows: Sequence[Sequence[int]], batches: Iterable[Batch]) -> np.ndarray:
        encoder = self._encoder
        return encoder.runner.rows(
            batches,
            lambda batch: encoder.apply(*padded(rows, batch, encoder.tokenizer.pad_id), "query"),
            np.empty((len(rows), encoder.width), np.float32),
        )

    def warm(self) -> None:
        """Compiles the shapes of queries of up to 32 tokens."""
        lengths = [length for length in self._lengths if length <= 32] or self._lengths[:1]
        shapes = itertools.product(self._sizes, lengths)
        self._computed([], (Batch(np.arange(0), *shape) for shape in shapes))
