"""Work in shards: each is one file, written once and kept if the run is interrupted.

`sharded` makes them in this process, one after the other; `pooled` in worker processes; both, if
asked, on a cluster (`engines.py`). They skip the shards that an interrupted run has finished and
return the facts of every shard, in order. A stage keeps its other temporary files in
`Writer.scratch(name)`.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
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
from qac_jax.pipeline import engines
from qac_jax.pipeline.engines import Loaded
from qac_jax.processes import cores, prefetched
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
    base: str, pieces: Sequence[tuple[int, int]], job: Callable[[int, int], Any], each: int = 1
) -> list[ShardFile]:
    """The files of records of these pieces: their jobs by start and stop."""
    names = [shard_name(base, number, len(pieces)) for number in range(len(pieces))]
    return [
        ShardFile(name, (stop - start) * each, job(start, stop))
        for name, (start, stop) in zip(names, pieces, strict=True)
    ]


def sharded(
    out: Writer,
    shards: Sequence[ShardFile],
    load: Callable[[], Loaded],
    label: str,
    unit: str,
    *,
    here: bool = False,
) -> list[Facts]:
    """Writes every missing shard by what `load` loads: a model, an index.

    `here`: in this process, whatever the engine. The work may advance the bar itself; the rest was
    then done by an earlier run.
    """
    left = [shard for shard in shards if shard.name not in out.done]
    with _bar(shards, left, label, unit) as bar:
        if not left:
            pass
        elif here or engines.is_local():
            _loaded(out, left, load(), bar)
        else:
            for made in engines.by_actors(out, left, load):
                out.take(made.folder, made.entries)
                bar.advance(made.shard.items)
    return [out.facts(shard.name) for shard in shards]


def _loaded(out: Writer, shards: Sequence[ShardFile], loaded: Loaded, bar: Bar) -> None:
    """One after the other; the next job is prepared in a thread."""
    jobs = prefetched(loaded.ahead, [shard.job for shard in shards])
    for shard, ready in zip(shards, jobs, strict=True):
        before = bar.count
        facts = loaded.work(dataclasses.replace(shard, job=ready), bar)
        counted = bar.count - before
        (bar.skip if counted else bar.advance)(shard.items - counted)
        out.keep(shard.name, facts)


def pooled(
    out: Writer,
    shards: Sequence[ShardFile],
    function: Callable[[Any, str], Mapping[str, Any]],
    workers: Workers,
    label: str,
    unit: str = "shards",
    *,
    is_done: Callable[[ShardFile], bool] = lambda shard: True,
    records: str = "",
) -> list[Facts]:
    """Writes every missing shard on many cores: `function(shard.job, path)` writes the file.

    `is_done` may ask for more than the file, such as what a job leaves in a scratch folder.
    `records`: the unit of a shard's fact "records", shown by the bar.
    """
    left = [shard for shard in shards if not (shard.name in out.done and is_done(shard))]
    known = [shard for shard in shards if shard not in left and shard.name in out.done]
    count = sum(out.facts(shard.name).get("records", 0) for shard in known)
    with _bar(shards, left, label, unit) as bar:
        for shard in _pooled(out, left, function, workers.workers):
            count += out.facts(shard.name).get("records", 0)
            bar.advance(shard.items, **({records: count} if records else {}))
    return [out.facts(shard.name) for shard in shards]


def _pooled(
    out: Writer, shards: Sequence[ShardFile], function: Callable[[Any, str], Any], workers: int
) -> Iterator[ShardFile]:
    """The shards, each when it is kept."""
    if not engines.is_local():
        for made in engines.by_tasks(out, shards, function):
            out.take(made.folder, made.entries)
            yield made.shard
        return
    jobs = [(shard.job, os.path.abspath(out.part(shard.name))) for shard in shards]
    for shard, facts in zip(shards, _run(function, jobs, workers), strict=True):
        out.keep(shard.name, facts)
        yield shard


@contextlib.contextmanager
def _bar(
    shards: Sequence[ShardFile], left: Sequence[ShardFile], label: str, unit: str
) -> Iterator[Bar]:
    total = sum(shard.items for shard in shards)
    with Bar(label, total=total, unit=unit) as bar:
        bar.skip(total - sum(shard.items for shard in left))
        yield bar


def _run(
    function: Callable[[Any, str], Any], jobs: Sequence[tuple[Any, str]], workers: int
) -> Iterator[Any]:
    """Calls the function for every job, in worker processes (0: one per core), and yields the
    results in the order of the jobs.

    A job's file is named, so the bytes do not depend on which worker runs it.
    """
    count = min(workers or cores(), len(jobs))
    if count <= 1:
        yield from itertools.starmap(function, jobs)
        return
    # Spawned, not forked: a fork would deadlock the threads of JAX and the tokenizers.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(count, context, _be_a_worker)
    try:
        for future in [pool.submit(function, *job) for job in jobs]:
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
