"""Requests that come at about the same time are answered by one call of the model.

`Batcher` gathers them: while a batch runs, the next one fills. It starts when as many are there as
were in the last one and waited behind it, or a few milliseconds later: a single client never waits,
and many who ask again and again are answered together, not in two halves by turns. What is more
than the queue holds is refused at once, so that waiting stays short.

`QueryEncoder` encodes a batch in few shapes, all compiled beforehand: XLA takes about a second for
every shape, and a server must not do so while others wait. On a CPU the time of a batch grows with
its tokens, so the padding of queries would cost as much as they do: there the layers compute the
queries one after the other in a row (`models/packing.py`), and a shape is the room of that row.
Elsewhere queries are padded to few lengths and numbers.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from qac_jax.inference.buckets import Batch, padded
from qac_jax.inference.encoder import Encoder
from qac_jax.serving import requests
from qac_jax.serving.requests import Problem


class _Waiting(NamedTuple):
    item: Any
    size: int
    answer: asyncio.Future[Any]


class Batcher:
    """`work` answers the items of a batch in a thread of its own, one batch at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        most: int,
        wait: float,
        queue: int,
        seen: Callable[[int, float], object] = lambda size, seconds: None,
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
            raise Problem(503, "the server is stopping; try another one", Retry_After="5")
        if len(self._waiting) >= self._queue:
            raise requests.busy()
        if self._loop is None or self._loop.done():
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
        while True:
            while not self._waiting:
                if self._closed:
                    return
                self._more.clear()
                await self._more.wait()
            await self._gather()
            if not (batch := self._taken()):
                continue
            size, began = _sizes(batch), time.perf_counter()
            items = [waiting.item for waiting in batch]
            try:
                answers = await loop.run_in_executor(self._thread, self._work, items)
            except Exception as error:  # the work's own: every request of the batch gets it
                answers = [error] * len(batch)
            self._clients = size + _sizes(self._waiting)
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
        enough = min(self._clients, self._most)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
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


def _sizes(waiting: Sequence[_Waiting] | collections.deque[_Waiting]) -> int:
    return sum(each.size for each in waiting)


# What a single query, or with padding every query of a batch, is padded to.
_LENGTHS = (16, 24, 32, 64)
# In a row: how many queries it may hold, of at most how many tokens each, and its room. A row of
# more tokens than these is not faster a token.
_COUNTS, _LONGEST = (4, 8, 16), (32, 64)
_ROOMS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
# Of long queries, and before the server answers, the rooms that are multiples of this.
_COARSE = 64


class Shape(NamedTuple):
    """A compiled program: `size` queries of at most `length` tokens, `room` tokens together."""

    size: int
    length: int
    room: int

    @property
    def packed(self) -> bool:
        """Whether it leaves padding out."""
        return self.room < self.size * self.length


def padded_shapes(devices: int, most: int, limit: int) -> list[Shape]:
    """Those with padding, for up to `most` queries of `limit` tokens, the short ones first."""
    sizes = [devices]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    lengths = sorted({min(length, limit) for length in _LENGTHS})
    return [Shape(size, length, size * length) for length in lengths for size in sizes]


def packed_shapes(most: int, limit: int) -> list[Shape]:
    """Those without, for groups of up to `most` queries."""
    shapes = padded_shapes(1, 1, limit)
    for longest in sorted({min(length, limit) for length in _LONGEST}):
        for size in _COUNTS if most > 1 else ():
            largest = min(_ROOMS[-1], size * longest)
            step = _COARSE if longest > _LONGEST[0] else 1
            rooms = {r for r in _ROOMS if 8 * size <= r < size * longest and r % step == 0}
            shapes += [Shape(size, longest, room) for room in sorted(rooms | {largest})]
            if size >= most:
                break
    return shapes


class QueryEncoder:
    """An encoder whose queries are read in few shapes."""

    def __init__(self, encoder: Encoder, most: int):
        self._encoder = encoder
        devices, limit = encoder.runner.mesh.size, encoder.limits["query"]
        packs = devices == 1 and jax.default_backend() == "cpu"
        self._shapes = packed_shapes(most, limit) if packs else padded_shapes(devices, most, limit)
        self._most, self._longest, self._room = map(max, zip(*self._shapes, strict=True))
        # The first of them before the server answers, the others while it does.
        self._ready = [
            shape
            for shape in self._shapes
            if shape.length <= _LONGEST[0] and (not shape.packed or shape.room % _COARSE == 0)
        ]

    def encode(self, texts: Sequence[str], side: str = "passage") -> np.ndarray:
        """As of the encoder."""
        if side != "query":
            return self._encoder.encode(texts, side)
        rows = self._encoder.tokenize(texts, side)
        vectors = np.empty((len(rows), self._encoder.width), np.float32)
        long = [number for number, row in enumerate(rows) if len(row) > self._longest]
        if long:
            vectors[long] = self._encoder.encode_tokens([rows[number] for number in long], side)
        for group in self._groups(rows):
            part = [rows[number] for number in group]
            vectors[group] = self._computed(self._shape(part), part)
        return vectors

    def _groups(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """The numbers of the short ones, the longest first, in groups that each fit a shape."""
        group: list[int] = []
        tokens = 0
        for number in sorted(range(len(rows)), key=lambda number: -len(rows[number])):
            size = len(rows[number])
            if size > self._longest:
                continue
            if len(group) == self._most or tokens + size > self._room:
                yield group
                group, tokens = [], 0
            group.append(number)
            tokens += size
        if group:
            yield group

    def _shape(self, rows: Sequence[Sequence[int]]) -> Shape:
        """The cheapest that these fit into; one that is compiled, if any of them is."""
        longest, tokens = len(rows[0]), sum(map(len, rows))
        fitting = [
            shape
            for shape in self._shapes
            if shape.size >= len(rows)
            and shape.length >= longest
            and (shape.room >= tokens or not shape.packed)
        ]
        ready = [shape for shape in fitting if shape in self._ready]
        return min(ready or fitting, key=lambda shape: (shape.room, shape.size * shape.length))

    def _computed(self, shape: Shape, rows: Sequence[Sequence[int]]) -> np.ndarray:
        batch = Batch(np.arange(len(rows)), shape.size, shape.length)
        ids, lengths = padded(rows, batch, self._encoder.tokenizer.pad_id)
        if shape.packed:
            lengths[len(rows) :] = 0
        room = (shape.room,) if shape.packed else ()
        return np.asarray(self._encoder.apply(ids, lengths, "query", *room))[: len(rows)]

    def warm(self) -> None:
        """Compiles the shapes of short queries, and in the background the others."""
        for shape in self._ready:
            self._computed(shape, [])
        threading.Thread(target=self._rest, daemon=True).start()

    def _rest(self) -> None:
        for shape in self._shapes:
            if shape not in self._ready:
                self._computed(shape, [])
                self._ready = [*self._ready, shape]
