"""Work in shards: each is one file, written once and kept if the run is interrupted.

`sharded` makes them in this process, one after the other; `pooled` in worker processes. Both skip
the shards that an interrupted run has finished and return the facts of every shard, in order. In a
stage that several hosts share, each writes some of the shards and returns when all are complete
(`hosts.py`). A stage keeps its other temporary files in `Writer.scratch(name)`.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.formats.records import shard_name
from qac_jax.pipeline import hosts
from qac_jax.processes import cores
from qac_jax.progress import Bar


# Facts of a shard, as JSON; "sha256", if present, becomes the hash of the file.
Facts = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Workers:
    """Worker processes that share a corpus."""

    workers: int = option(0, "worker processes (0: one per core)", affects_result=False)


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """One file of the artefact: its name, its number of items, and its job."""

    name: str
    items: int
    job: Any = None


def cut(total: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of every shard of at most `size` items; one empty shard of nothing."""
    return [(n, min(n + size, total)) for n in range(0, max(total, 1), size)]


def record_files(
    base: str, pieces: Sequence[tuple[int, int]], job: Callable[[int, int, str], Any], each: int = 1
) -> list[ShardFile]:
    """The files of records of these pieces: their jobs by start, stop and the file's name."""
    names = [shard_name(base, number, len(pieces)) for number in range(len(pieces))]
    return [
        ShardFile(name, (stop - start) * each, job(start, stop, name))
        for name, (start, stop) in zip(names, pieces, strict=True)
    ]


def sharded(
    out: Writer,
    shards: Sequence[ShardFile],
    work: Callable[[ShardFile, Bar], Mapping[str, Any] | None],
    label: str,
    unit: str,
    *,
    ahead: Callable[[Any], Any] = lambda job: job,
) -> list[Facts]:
    """Writes every missing shard in this process: `work` writes `out.part(shard.name)` and returns
    its facts.

    `ahead` prepares a job, such as by reading its tokens, in a thread during the work on the
    previous one. `work` may advance the bar itself; the rest was then done by an earlier run.
    """
    left, total = _left(out, shards), sum(shard.items for shard in shards)
    with (
        Bar(label, total=total, unit=unit) as bar,
        concurrent.futures.ThreadPoolExecutor(1) as reader,
    ):
        bar.skip(total - sum(shard.items for shard in left))
        upcoming = [reader.submit(ahead, shard.job) for shard in left[:1]]
        for place, shard in enumerate(left):
            ready = upcoming.pop().result()
            upcoming = [reader.submit(ahead, s.job) for s in left[place + 1 : place + 2]]
            before = bar.count
            facts = work(dataclasses.replace(shard, job=ready), bar)
            counted = bar.count - before
            (bar.skip if counted else bar.advance)(shard.items - counted)
            _keep(out, shard, facts or {})
        hosts.team().wait(out, [shard.name for shard in shards])
    return [out.facts(shard.name) for shard in shards]


def pooled(
    out: Writer,
    shards: Sequence[ShardFile],
    function: Callable[[Any], Mapping[str, Any]],
    workers: Workers,
    label: str,
    unit: str = "shards",
    *,
    is_done: Callable[[ShardFile], bool] = lambda shard: True,
    records: str = "",
) -> list[Facts]:
    """Writes every missing shard in a pool: `function(shard.job)` writes the file's part.

    `is_done` may ask for more than the file, such as what a job leaves in a scratch folder.
    `records`: the unit of a shard's fact "records", shown by the bar.
    """
    left = _left(out, shards, is_done)
    known = [shard for shard in shards if shard not in left and shard.name in out.done]
    count = sum(out.facts(shard.name).get("records", 0) for shard in known)
    total = sum(shard.items for shard in shards)
    with Bar(label, total=total, unit=unit) as bar:
        bar.skip(total - sum(shard.items for shard in left))
        answers = run(function, [shard.job for shard in left], workers.workers)
        for shard, facts in zip(left, answers, strict=True):
            _keep(out, shard, facts)
            count += facts.get("records", 0)
            bar.advance(shard.items, **({records: count} if records else {}))
        hosts.team().wait(out, [shard.name for shard in shards])
    return [out.facts(shard.name) for shard in shards]


def _left(
    out: Writer, shards: Sequence[ShardFile], is_done: Callable[[ShardFile], bool] = lambda _: True
) -> list[ShardFile]:
    team = hosts.team()
    team.join(out)
    own = shards[team.number :: team.count]
    return [shard for shard in own if not (shard.name in out.done and is_done(shard))]


def _keep(out: Writer, shard: ShardFile, facts: Mapping[str, Any]) -> None:
    kept = {name: value for name, value in facts.items() if name != "sha256"}
    out.keep(shard.name, sha256=facts.get("sha256"), facts=kept)


def run(function: Callable[[Any], Any], jobs: Sequence[Any], workers: int = 0) -> Iterator[Any]:
    """Calls the function for every job, in worker processes (0: one per core), and yields the
    results in the order of the jobs.

    A job names the file that it writes, so the bytes do not depend on which worker runs it.
    """
    count = min(workers or cores(), len(jobs))
    if count <= 1:
        yield from map(function, jobs)
        return
    # Spawned, not forked: a fork would deadlock the threads of JAX and the tokenizers.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(count, context, _be_a_worker)
    try:
        for future in [pool.submit(function, job) for job in jobs]:
            yield future.result()
    except BrokenProcessPool:
        raise UserError(
            f"a worker process was killed, most likely for lack of memory; use fewer than {count} "
            "workers (--workers), or more shards, which are smaller"
        ) from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _be_a_worker() -> None:
    # The parent decides when to stop; one process is one core.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
