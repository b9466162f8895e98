"""The loader: examples -> batches of fixed shapes.

A batch is a function of (data, settings, seed, step) alone: not of the number of hosts, worker
processes or threads, nor of what makes it. So the loader's state is a step number.

    loader = Loader("out/examples", batch_size=64, seed=0)
    for batch in loader:                     # {"passage": [64, 144], "passage_length": [64], …}
        …
    state = loader.state()                   # JSON; loader.restore(state) goes on from there
"""

import collections
import concurrent.futures
import dataclasses
import functools
import gc
import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

import numpy as np

from qac_jax import extras
from qac_jax.artifacts import Artifact
from qac_jax.data.examples import LENGTHS, Examples, Source
from qac_jax.data.featurizer import Featurizer, make_featurizer
from qac_jax.data.form import CROPS
from qac_jax.data.kind import Example
from qac_jax.data.kinds import KINDS
from qac_jax.data.randomness import ExampleRng
from qac_jax.data.sampler import Plan, Slots, joined, make_plan
from qac_jax.errors import UserError
from qac_jax.fields import option
from qac_jax.text import tokenizers


Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How examples are read."""

    kind: str = option(
        "",
        "read the examples as this kind (default: the one they were made for)",
        choices=("", *KINDS),
    )
    settings: Mapping[str, Any] | None = option(None, "of the kind")
    lengths: Mapping[str, int] | None = option(None, "limits in tokens of the features")
    crop: str = option(
        "", "where texts that are too long are cropped (default: the kind's)", choices=("", *CROPS)
    )
    separate_documents: bool = option(False, "never put two examples of one document into a batch")
    workers: int = option(
        -1,
        "loader processes (0: a thread; -1: a thread on CPUs, a process for two accelerators)",
        at_least=-1,
        affects_result=False,
    )
    feed: str = option(
        "grain",
        "what makes the batches, which are the same: grain, or seqio (the extra seqio)",
        choices=("grain", "seqio"),
        affects_result=False,
    )

    def check_installed(self) -> None:
        """Raises where what the feed needs is missing."""
        if self.feed == "seqio" and importlib.util.find_spec("seqio") is None:
            raise UserError(f"--feed seqio needs seqio; {extras.remedy('seqio')}, or leave it out")


# Records fetched and parsed together, for several small batches if necessary: ten times as fast.
_TOGETHER = 1024


class Batches:
    """This host's rows of batch number `step`. Is pickled for worker processes."""

    def __init__(
        self,
        source: Source,
        featurizer: Featurizer,
        plan: Plan,
        *,
        seed: int,
        rows: tuple[int, int],
    ):
        self.source, self.featurizer, self.plan, self.seed = source, featurizer, plan, seed
        self._first, self._last = rows
        self.rows = self._last - self._first
        # Steps whose records are fetched together; batches of one run come from one process.
        self.run = max(1, _TOGETHER // self.rows)
        self._fetched: tuple[int, Slots, Sequence[Mapping[str, Any]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fetched": None}

    def __call__(self, step: int) -> Batch:
        number, place = divmod(step, self.run)
        slots, records = self._records(number)
        here = slice(place * self.rows, (place + 1) * self.rows)
        own = Slots(*(column[here] for column in slots))
        return self.featurizer.batch(self.examples(own, records[here]))

    def examples(
        self, slots: Slots, records: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Example]:
        """The examples of these slots: what the batches and the seqio tasks are made of."""
        records = self.source.read(slots.example) if records is None else records
        seek, make, seed = ExampleRng().seek, self.featurizer.example, self.seed
        places = zip(slots.epoch.tolist(), slots.example.tolist(), records, strict=True)
        return [make(record, seek(seed, epoch, index)) for epoch, index, record in places]

    def _records(self, number: int) -> tuple[Slots, Sequence[Mapping[str, Any]]]:
        """The slots of a run of steps and their records; the last run is cached."""
        fetched = self._fetched
        if fetched is None or fetched[0] != number:
            steps = range(number * self.run, (number + 1) * self.run)
            slots = joined(self.plan.at(step).rows(self._first, self._last) for step in steps)
            # One assignment: a prefetching thread may read while the main one replaces it.
            self._fetched = fetched = (number, slots, self.source.read(slots.example))
        return fetched[1:]


def opened(source: Source | str | os.PathLike[str]) -> Source:
    return Examples(source) if isinstance(source, str | os.PathLike) else source


def plan_of(
    source: Source, batch_size: int, *, separate_documents: bool = False, **how: Any
) -> Plan:
    """The plan of a source, whose documents batches may keep apart."""
    documents = source.documents if separate_documents else None
    if separate_documents and documents is None:
        raise UserError(
            "separate_documents needs examples whose documents are known; set it to False"
        )
    return make_plan(source.count, batch_size, documents=documents, **how)


class Loader:
    """An iterator of batches (dicts of numpy arrays) with a restorable state.

    `batch_size` is global; `host` = (number, count) says which rows are made here.
    `reading`: kind, lengths and so on; its fields may also be passed as keyword arguments.
    `remainder`: "drop", or "wrap" (batches cross the ends of epochs). `epochs`: None is endless.
    `accelerators`: of this host, which decide on the processes where nobody does.
    """

    def __init__(
        self,
        source: Source | str | os.PathLike[str],
        *,
        batch_size: int,
        reading: Reading | None = None,
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
        remainder: str = "drop",
        host: tuple[int, int] = (0, 1),
        prefetch: int = 2,
        accelerators: int = 0,
        **settings: Any,
    ):
        reading = dataclasses.replace(reading or Reading(), **settings)
        self.source = source = opened(source)
        self.featurizer = featurizer = make_featurizer(
            source, reading.kind, reading.settings, reading.lengths, reading.crop
        )
        number, count = host
        if batch_size < 1 or batch_size % count:
            raise UserError(
                f"batch_size {batch_size} cannot be shared by {count} hosts; make it a positive "
                "multiple of their count"
            )
        self.order: dict[str, Any] = {
            "batch_size": batch_size,
            "remainder": remainder,
            "separate_documents": reading.separate_documents,
        }
        self.plan = plan_of(source, seed=seed, shuffle=shuffle, **self.order)
        self.batch_size, self.rows = batch_size, (rows := batch_size // count)
        self.here = number * rows, (number + 1) * rows  # this host's rows of a batch
        self.seed, self.shuffle, self.step = seed, shuffle, 0
        self.steps = None if epochs is None else self.plan.steps(epochs)  # None: endless
        self.make = Batches(source, featurizer, self.plan, seed=seed, rows=self.here)
        self.spec = featurizer.spec(rows)  # shape and type of every array of this host's batches
        workers = reading.workers
        if workers < 0:
            # One makes 27,000 examples a second or more; two of the fastest devices take 7,000.
            workers = min(-(-accelerators // 2), (os.cpu_count() or 2) // 2)
        self._feed: Generator[Batch] | None = None
        self._start = functools.partial(ahead, self.make, prefetch=prefetch, workers=workers)
        if reading.feed == "seqio":
            if reading.workers > 0:
                raise UserError("feed 'seqio' makes examples by itself; leave out --workers")
            from qac_jax.data import tasks  # which imports TensorFlow

            self._start = functools.partial(tasks.through_seqio, self)
        # Of all that the batches depend on, so that no state goes on with other ones.
        facts = {
            "examples": (source.identity, featurizer.kind.name, featurizer.settings),
            "lengths": featurizer.lengths,
            "form": dataclasses.asdict(featurizer.form),
            "order": (seed, batch_size, shuffle, remainder, reading.separate_documents),
        }
        text = json.dumps(facts, sort_keys=True, default=repr)
        self.identity = hashlib.sha256(text.encode()).hexdigest()

    @property
    def examples_per_epoch(self) -> int:
        """Over all hosts."""
        return self.plan.examples_per_epoch

    @property
    def batches_per_epoch(self) -> int:
        return self.plan.batches_per_epoch

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "identity": self.identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of any loader of the same data and settings."""
        if state.get("identity") != self.identity:
            raise UserError(
                "the saved loader state belongs to other data or settings; restore these, or start "
                "a new run"
            )
        self.close()
        self.step = int(state["step"])

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._feed is None:
            self._feed = self._start(self.step, self.steps)
        try:
            batch = next(self._feed)
        except StopIteration:
            self.close()
            raise
        self.step += 1
        return batch

    def close(self) -> None:
        """Ends threads and processes; iterating again continues from the same step."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ENDLESS = 1 << 60


def ahead(
    make: Batches, start: int, stop: int | None, *, prefetch: int, workers: int
) -> Generator[Batch]:
    """make(start), make(start + 1), … before `stop` (None: endless), made ahead of their consumer:

    in grain's thread (prefetch=0: when they are asked for), or in processes of our own, since
    grain's leave shared objects behind when they are stopped early.
    """
    stop = _ENDLESS if stop is None else stop
    if workers:
        yield from _by_processes(make, start, stop, prefetch * workers, workers)
    elif prefetch:
        import grain

        steps = grain.MapDataset.range(start, max(start, stop)).map(make)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch)
        iterator = iter(steps.to_iter_dataset(options))
        try:
            yield from iterator
        finally:
            iterator.close()
    else:
        yield from map(make, range(start, stop))


def _by_processes(
    make: Batches, start: int, stop: int, most: int, workers: int
) -> Generator[Batch]:
    context = multiprocessing.get_context("spawn")  # forking a process with threads is unsafe
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker, (make,))
    coming: collections.deque[concurrent.futures.Future[list[Batch]]] = collections.deque()
    try:
        for first in range(start // make.run * make.run, stop, make.run):
            steps = range(max(first, start), min(first + make.run, stop))
            coming.append(pool.submit(_run_of, steps))
            if len(coming) > -(-max(most, workers) // make.run):
                yield from coming.popleft().result()
        while coming:
            yield from coming.popleft().result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a loader process ended before its time, as processes do when memory runs out"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_make: Callable[[int], Batch]  # in a worker process


def _begin_worker(make: Batches) -> None:
    global _make
    _make = make
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    gc.disable()  # examples have no cycles, and the collector takes a tenth of the time
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for it for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_of(steps: range) -> list[Batch]:
    return [_make(step) for step in steps]


def preview(
    artifact: Artifact, count: int, *, task: str = "", seed: int = 0
) -> list[dict[str, Any]]:
    """The first examples of an artefact, read as `task` (default: the kind it was made for)."""
    source, settings, schema = Examples(artifact), {}, artifact.info["schema"]
    if (task or source.info["task"]) == "augtriever":  # all strategies whose texts are stored
        named = [name for name in schema if name + LENGTHS in schema]
        settings = {"strategies": dict.fromkeys(["random_crop", *named], 1.0)}
    featurizer = make_featurizer(source, task, settings)
    tokenizer = tokenizers.load(source.tokenizer_folder)

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(part) for part in value]
        return tokenizer.backend.decode(value.tolist(), skip_special_tokens=False)

    previews = []
    for index, record in enumerate(source.read(np.arange(min(count, source.count)))):
        example = featurizer.example(record, ExampleRng(seed, 0, index))
        previews.append(
            {
                name: shown(example[name]) if f.padded else np.asarray(example[name]).tolist()
                for name, f in featurizer.features.items()
                if not f.like  # token types are of no use to a reader
            }
        )
    return previews
