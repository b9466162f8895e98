"""Batches: what comes together is answered together, and no more than the queue holds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qac_jax.serving.batching import Batcher
from qac_jax.serving.problems import Problem


def batcher(work: Any, **changes: Any) -> Batcher[int, int]:
    return Batcher(work, **{"most": 4, "wait": 0.005, "queue": 8, **changes})


def test_items_are_answered_in_batches_of_at_most_so_much() -> None:
    batches: list[list[int]] = []

    def work(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        return [2 * item for item in items]

    async def run() -> list[int]:
        made = batcher(work, queue=20)
        answers = await asyncio.gather(*(made.submit(n) for n in range(10)))
        large = await made.submit(100, size=99)
        await made.close()
        return [*answers, large]

    assert asyncio.run(run()) == [*range(0, 20, 2), 200]
    assert sum(batches, []) == [*range(10), 100] and max(map(len, batches)) == 4


def test_a_full_queue_refuses_and_what_it_took_is_answered() -> None:
    go = threading.Event()

    def work(items: Sequence[int]) -> Sequence[int]:
        go.wait(5)
        return items

    async def run() -> tuple[int, list[Any]]:
        made = batcher(work, most=1, queue=3)
        first = asyncio.create_task(made.submit(-1))
        await asyncio.sleep(0.02)
        rest = [asyncio.create_task(made.submit(n)) for n in range(6)]
        await asyncio.sleep(0.02)
        waiting = len(made)
        closing = asyncio.create_task(made.close())
        go.set()
        answers = await asyncio.gather(first, *rest, return_exceptions=True)
        await closing
        with pytest.raises(Problem, match="stopping"):
            await made.submit(9)
        return waiting, answers

    waiting, answers = asyncio.run(run())
    refused = [a for a in answers if isinstance(a, Problem)]
    assert waiting == 3 and answers[:4] == [-1, 0, 1, 2]
    assert len(refused) == 3 and {(p.status, p.retry) for p in refused} == {(503, 1)}


def test_errors_go_to_those_whose_they_are() -> None:
    def work(items: Sequence[int]) -> list[Any]:
        if 13 in items:
            raise RuntimeError("the whole batch")
        return [ValueError(str(item)) if item % 2 else item for item in items]

    async def run() -> list[Any]:
        made = batcher(work)
        answers = await asyncio.gather(*(made.submit(n) for n in range(4)), return_exceptions=True)
        again = await asyncio.gather(made.submit(13), return_exceptions=True)
        after = await made.submit(2)
        await made.close()
        return [*answers, *again, after]

    answers = asyncio.run(run())
    assert answers[0] == 0 and answers[2] == 2 and answers[5] == 2
    assert isinstance(answers[1], ValueError) and isinstance(answers[4], RuntimeError)


def test_who_has_gone_is_left_out() -> None:
    seen: list[int] = []

    def work(items: Sequence[int]) -> Sequence[int]:
        time.sleep(0.02)
        seen.extend(items)
        return items

    async def run() -> None:
        made = batcher(work, most=1, wait=0.0)
        tasks = [asyncio.create_task(made.submit(n)) for n in range(3)]
        await asyncio.sleep(0.005)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.close()

    asyncio.run(run())
    assert seen == [0, 2]
