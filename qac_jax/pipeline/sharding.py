"""Work in shards: each is one file, written once and kept if the run is interrupted.

`sharded` makes them in this process, one after the other; `pooled` in worker processes or on a
Beam runner. Both skip the shards that an interrupted run has finished and return the facts of every
shard, in order. In a stage that several processes divide among them, each writes some of the shards
and returns when all are complete (`dividing.py`); those whose writer does not `joins` the artefact
end there. A stage keeps its other temporary files in `Writer.scratch(name)`.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qac_jax.artifacts import Writer
from qac_jax.fields import option
from qac_jax.pipeline import dividing, engine
from qac_jax.progress import Bar


# Facts of a shard, as JSON; "sha256", if present, becomes the hash of the file.
Facts = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Workers:
    """Worker processes that share a corpus."""

    workers: int = option(0, "worker processes (0: one per core)", affects_result=False)
    runner: str = option(
        "local",
        "who does the work",
        shown=("local", "an Apache Beam runner such as DirectRunner"),
        affects_result=False,
    )
    runner_options: str = option("", "flags of the Beam runner", affects_result=False)

    def check_installed(self) -> None:
        """Raises where what the runner needs is missing."""
        if self.runner != engine.LOCAL:
            engine.check_installed(self.runner)


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """One file of the artefact: its name, its number of items, and its job."""

    name: str
    items: int
    job: Any = None


def cut(total: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of every shard of at most `size` items; one empty shard of nothing."""
    return [(n, min(n + size, total)) for n in range(0, max(total, 1), size)]


def sharded(
    out: Writer,
    shards: Sequence[ShardFile],
    work: Callable[[ShardFile, Any], Mapping[str, Any] | None],
    bar: Bar,
    *,
    ahead: Callable[[ShardFile], Any] = lambda shard: None,
) -> list[Facts]:
    """Writes every missing shard in this process: `work` writes `out.part(shard.name)` and returns
    its facts.

    `ahead` prepares a shard, such as its tokens, in a thread during the work on the previous one.
    `work` may advance the bar itself; the rest of its shard was then done by an earlier run.
    """
    for place, left in enumerate(dividing.team().turns(out, shards)):
        if place == 0:
            bar.skip(_items(shards) - _items(left))
        _work_off(out, left, work, bar, ahead)
    return [out.facts(shard.name) for shard in shards]


def _work_off(
    out: Writer,
    left: Sequence[ShardFile],
    work: Callable[[ShardFile, Any], Mapping[str, Any] | None],
    bar: Bar,
    ahead: Callable[[ShardFile], Any],
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        upcoming = [reader.submit(ahead, shard) for shard in left[:1]]
        for place, shard in enumerate(left):
            ready = upcoming.pop().result()
            upcoming = [reader.submit(ahead, s) for s in left[place + 1 : place + 2]]
            before = bar.count
            facts = dict(work(shard, ready) or {})
            counted = bar.count - before
            (bar.skip if counted else bar.advance)(shard.items - counted)
            out.keep(shard.name, sha256=facts.pop("sha256", None), facts=facts)


def _items(shards: Sequence[ShardFile]) -> int:
    return sum(shard.items for shard in shards)


def pooled(
    out: Writer,
    shards: Sequence[ShardFile],
    function: Callable[[Any], Mapping[str, Any]],
    workers: Workers,
    bar: Bar,
    *,
    is_done: Callable[[ShardFile], bool] = lambda shard: True,
    records: str = "",
) -> list[Facts]:
    """Writes every missing shard in a pool: `function(shard.job)` writes the file's part.

    `is_done` may ask for more than the file, such as what a job leaves in a scratch folder.
    `records`: the unit of a shard's fact "records", shown by the bar.
    """
    team, total = dividing.team(), 0
    for place, left in enumerate(team.turns(out, shards, is_done)):
        if place == 0:
            skipped = [shard for shard in shards if shard not in left]
            bar.skip(_items(skipped))
            known = [shard for shard in skipped if shard.name in out.done]
            total = sum(out.facts(shard.name)["records"] for shard in known) if records else 0
        answers = engine.run(
            function,
            [shard.job for shard in left],
            workers=workers.workers,
            runner=workers.runner,
            runner_options=workers.runner_options,
            scratch=os.path.abspath(out.scratch(f"workers-{team.number}")),
        )
        for shard, answer in zip(left, answers, strict=True):
            facts = dict(answer)
            out.keep(shard.name, sha256=facts.pop("sha256", None), facts=facts)
            total += facts.get("records", 0)
            bar.advance(shard.items, **({records: total} if records else {}))
    return [out.facts(shard.name) for shard in shards]
