"""Work on a corpus: one pure function and one job per shard, on local cores or a cluster.

    for result in engine.run(function, jobs, workers=8): …

A job names the file it writes, so the bytes do not depend on which worker runs it.
Results are yielded in the order of the jobs; jobs and results must be picklable, and for Beam
results must be JSON.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from qac_jax import extras
from qac_jax.errors import DataError, UserError
from qac_jax.processes import cores


Job = TypeVar("Job")
Result = TypeVar("Result")

LOCAL = "local"


def run(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    workers: int = 0,
    runner: str = LOCAL,
    runner_options: str = "",
    scratch: str = "",
) -> Iterator[Result]:
    """Calls the function for every job; `workers` 0 means all cores.

    `runner` names a Beam runner instead ("DirectRunner", "DataflowRunner"…); its results pass
    through the folder `scratch`, which all of its machines must see.
    """
    if runner != LOCAL:
        yield from _run_beam(function, jobs, runner, runner_options, scratch)
        return
    count = min(workers or cores(), len(jobs))
    if count <= 1:
        yield from map(function, jobs)
    else:
        yield from _run_pool(function, jobs, count)


def _run_pool(
    function: Callable[[Job], Result], jobs: Sequence[Job], count: int
) -> Iterator[Result]:
    # Spawned, not forked: a fork would deadlock the threads of JAX and the tokenisers.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_be_a_worker)
    futures = [pool.submit(_Guarded(function), job) for job in jobs]
    try:
        for future in futures:
            yield _unwrapped(future.result())
    except BrokenProcessPool:
        raise UserError(
            f"a worker process was killed, most likely for lack of memory; use fewer than "
            f"{count} workers (--workers), or more shards, which are smaller"
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


class _Guarded:
    """Returns a UserError as text, because not every exception can be pickled."""

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __call__(self, job: Any) -> tuple[str, Any]:
        try:
            return "result", self.function(job)
        except DataError as error:
            return "data", {"message": error.message, "file": error.file, "line": error.line}
        except UserError as error:
            return "error", str(error)


def _unwrapped(answer: tuple[str, Any]) -> Any:
    kind, value = answer
    if kind == "error":
        raise UserError(value)
    if kind == "data":
        raise DataError(**value)
    return value


def check_installed(runner: str) -> None:
    """Raises where Apache Beam is missing."""
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            f"--runner {runner} needs Apache Beam; {extras.remedy('beam')}, or leave --runner out"
        )


def _run_beam(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    runner: str,
    options: str,
    scratch: str,
) -> Iterator[Result]:
    check_installed(runner)
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = [f"--runner={runner}", *options.split()]
    numbered = list(enumerate(jobs))
    with beam.Pipeline(options=PipelineOptions(flags, save_main_session=False)) as pipeline:
        _ = (
            pipeline
            | "jobs" >> beam.Create(numbered)
            | "one job a worker" >> beam.Reshuffle()
            | "run" >> beam.Map(_BeamCall(function, scratch))
        )
    for index, _ in numbered:
        path = _answer(scratch, index)
        with open(path, encoding="utf-8") as file:
            answer = json.load(file)
        os.remove(path)
        yield _unwrapped(tuple(answer))


class _BeamCall:
    """Runs a numbered job and leaves its result in the scratch folder, whole or not at all."""

    def __init__(self, function: Callable[[Any], Any], scratch: str):
        self.function, self.scratch = _Guarded(function), scratch

    def __call__(self, numbered: tuple[int, Any]) -> int:
        index, job = numbered
        path = _answer(self.scratch, index)
        # Two workers may run the same job (Beam repeats what is slow): each writes its own file.
        part = f"{path}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(self.function(job), file)
        os.replace(part, path)
        return index


def _answer(scratch: str, index: int) -> str:
    return os.path.join(scratch, f"result-{index:05d}.json")
