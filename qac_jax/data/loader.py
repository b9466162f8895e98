"""The loader: examples -> batches of fixed shapes, reproducible whatever makes them.

A batch is a function of (data, settings, seed, step) alone: not of the number of hosts, worker
processes or threads, nor of whether grain is installed. So its state is a step number, and a
resumed run gets the same batches as an uninterrupted one.

    loader = Loader("out/examples", batch_size=64, seed=0)
    for batch in loader:                     # {"passage": [64, 144], "passage_length": [64], …}
        …
    state = loader.state()                   # JSON; loader.restore(state) goes on from there
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import extras
from qac_jax.artifacts import Artifact
from qac_jax.data import feeding
from qac_jax.data.examples import Examples, Source, check_holds
from qac_jax.data.featurizer import Featurizer, settle
from qac_jax.data.feeding import FEEDS, Batch, Spec, usual
from qac_jax.data.form import CROPS, Form
from qac_jax.data.kinds import KINDS
from qac_jax.data.randomness import ExampleRng
from qac_jax.data.sampler import Plan, Slots, make_plan
from qac_jax.errors import UserError, nearest
from qac_jax.fields import option
from qac_jax.text import tokenizers


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
        affects_result=False,
    )
    feed: str = option(
        "auto",
        "what makes the batches, which are the same: our loader with grain's thread or its own, or "
        "seqio (the extra seqio)",
        choices=FEEDS,
        affects_result=False,
    )

    def check_installed(self) -> None:
        """Raises where what the feed needs is missing."""
        if self.workers < -1:
            raise UserError(f"workers={self.workers} is not a number of processes; give 0 or more")
        if self.feed == "seqio" and importlib.util.find_spec("seqio") is None:
            raise UserError(f"--feed seqio needs seqio; {extras.remedy('seqio')}, or leave it out")


VALID = "valid"

# Records that are fetched and parsed together, for several small batches if necessary: fetching
# them one by one is ten times as slow.
_TOGETHER = 1024


class Batches:
    """This host's rows of batch number `step`. Is pickled for worker processes."""

    def __init__(
        self,
        sources: Sequence[Source],
        featurizers: Sequence[Featurizer],
        plan: Plan,
        *,
        seed: int,
        rows: tuple[int, int],
        with_valid: bool,
    ):
        self.sources, self.featurizers, self.plan, self.seed = sources, featurizers, plan, seed
        self.with_valid = with_valid
        self._first, self._last = rows
        self.rows = self._last - self._first
        # Steps whose records are fetched together; batches of one run come from one process.
        self.run = max(1, _TOGETHER // self.rows)
        self._fetched: tuple[int, Slots, Sequence[Mapping[str, Any]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fetched": None}

    @property
    def spec(self) -> Spec:
        """Shape and type of every array."""
        spec = self.featurizers[0].spec(self.rows)
        if self.with_valid:
            spec[VALID] = ((self.rows,), np.dtype(np.int32))
        return spec

    def __call__(self, step: int) -> Batch:
        number, place = divmod(step, self.run)
        slots, records = self._records(number)
        here = slice(place * self.rows, (place + 1) * self.rows)
        seek, seed = ExampleRng().seek, self.seed
        make = [featurizer.example for featurizer in self.featurizers]
        examples = [
            make[part](record, seek(seed, epoch, index))
            for part, epoch, index, record in zip(
                slots.part[here].tolist(),
                slots.epoch[here].tolist(),
                slots.example[here].tolist(),
                records[here],
                strict=True,
            )
        ]
        batch = self.featurizers[0].batch(examples)
        if self.with_valid:
            batch[VALID] = slots.valid[here].astype(np.int32)
        return batch

    def _records(self, number: int) -> tuple[Slots, Sequence[Mapping[str, Any]]]:
        """The slots of a run of steps and their records; the last run is cached."""
        fetched = self._fetched
        if fetched is None or fetched[0] != number:
            steps = range(number * self.run, (number + 1) * self.run)
            each = [self.plan.at(step).rows(self._first, self._last) for step in steps]
            slots = Slots(*(np.concatenate(column) for column in zip(*each, strict=True)))
            # One assignment: a prefetching thread may read while the main one replaces it.
            self._fetched = fetched = (number, slots, self._read(slots))
        return fetched[1:]

    def _read(self, slots: Slots) -> Sequence[Mapping[str, Any]]:
        if len(self.sources) == 1:
            return self.sources[0].read(slots.example)
        records: list[Mapping[str, Any]] = [{}] * len(slots.part)
        for part, source in enumerate(self.sources):
            rows = np.flatnonzero(slots.part == part)
            if rows.size:
                fetched = source.read(slots.example[rows])
                for row, record in zip(rows.tolist(), fetched, strict=True):
                    records[row] = record
        return records


@dataclasses.dataclass(frozen=True)
class Part:
    """A source of a mixture: the kind it is read as, and its share."""

    source: Source | str | os.PathLike[str]
    kind: str = ""  # default: the kind it was tokenised for
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight: float = 1.0

    def opened(self) -> Source:
        if isinstance(self.source, str | os.PathLike):
            return Examples(self.source)
        return self.source


class Loader:
    """An iterator of batches (dicts of numpy arrays) with a restorable state.

    `batch_size` is global; `host` = (number, count) says which rows are made here.
    `reading`: kind, lengths and so on; its fields may also be passed as keyword arguments.
    `remainder`: "drop" (training), "wrap", or "pad" (evaluation: a feature `valid` marks rows).
    `epochs`: None is endless. `accelerators`: of this host, which decide on the processes where
    nobody does.
    """

    def __init__(
        self,
        parts: Part | Source | str | os.PathLike[str] | Sequence[Part],
        *,
        batch_size: int,
        reading: Reading | None = None,
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
        remainder: str = "drop",
        host: tuple[int, int] = (0, 1),
        prefetch: int = 2,
        backend: str = "auto",
        accelerators: int = 0,
        **settings: Any,
    ):
        reading = dataclasses.replace(reading or Reading(), **settings)
        self.parts = _as_parts(parts, reading)
        sources = tuple(part.opened() for part in self.parts)
        featurizers = tuple(
            make_featurizer(source, part.kind, part.settings, reading.lengths, reading.crop)
            for source, part in zip(sources, self.parts, strict=True)
        )
        _check_alike(featurizers)
        number, count = host
        if batch_size < 1 or batch_size % count or not 0 <= number < count:
            raise UserError(
                f"batch_size {batch_size} cannot be shared by {count} hosts (this is number "
                f"{number}); make it a positive multiple of their count"
            )
        self.plan = make_plan(
            [source.count for source in sources],
            batch_size,
            weights=[part.weight for part in self.parts],
            seed=seed,
            shuffle=shuffle,
            remainder=remainder,
            documents=_documents(sources[0]) if reading.separate_documents else None,
        )
        rows = batch_size // count
        self.batch_size, self.rows, self.featurizers = batch_size, rows, featurizers
        self.here = number * rows, (number + 1) * rows  # this host's rows of a batch
        self.seed, self.shuffle = seed, shuffle
        self.epochs, self.step = epochs, 0
        self.make = Batches(
            sources,
            featurizers,
            self.plan,
            seed=seed,
            rows=self.here,
            with_valid=remainder == "pad",
        )
        backend = _backend(reading, backend, remainder)
        workers = reading.workers
        if workers < 0:
            of_threads = backend == feeding.SEQIO or not accelerators
            workers = 0 if of_threads else usual(accelerators, self.spec, prefetch)
        self._ahead = feeding.Ahead(backend, prefetch, workers)
        self._feed: feeding.Feed | None = None
        order = (seed, batch_size, shuffle, remainder, reading.separate_documents)
        self.identity = _identity(sources, featurizers, self.parts, order)

    @property
    def spec(self) -> Spec:
        """Shape and type of every array of this host's batches."""
        return self.make.spec

    @property
    def examples_per_epoch(self) -> int:
        """Over all hosts."""
        return self.plan.examples_per_epoch

    @property
    def batches_per_epoch(self) -> int:
        return self.plan.batches_per_epoch

    @property
    def steps(self) -> int | None:
        """The number of batches in all; None: endless."""
        return None if self.epochs is None else self.plan.steps(self.epochs)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must store to continue after the last batch that was taken."""
        return {"step": self.step, "identity": self.identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of this or another loader of the same data and settings."""
        if state.get("identity") != self.identity:
            raise UserError(
                "the saved loader state belongs to other data or settings (examples, kind, "
                "lengths, seed or batch_size differ); restore them, or start a new run"
            )
        self.close()
        self.step = int(state["step"])

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._feed is None:
            self._feed = self._begun()
        try:
            batch = next(self._feed)
        except StopIteration:
            self.close()
            raise
        self.step += 1
        return batch

    def _begun(self) -> feeding.Feed:
        if self._ahead.backend != feeding.SEQIO:
            return feeding.feed(self.make, self.step, self.steps, self._ahead)
        from qac_jax.data import tasks  # which imports TensorFlow

        return tasks.SeqioFeed(self, self.step, self.steps)

    def close(self) -> None:
        """Ends threads and processes; iterating again continues from the same step."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_featurizer(
    source: Source,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    lengths: Mapping[str, int] | None = None,
    crop: str = "",
) -> Featurizer:
    """The featurizer that makes examples of a kind from the records of a source."""
    kind = kind or source.info["task"]
    if kind not in KINDS:
        raise UserError(f"kind {kind!r} is not known; {nearest(kind, KINDS)}")
    form = Form.from_info(source.info, crop or KINDS[kind].crop)
    stored = source.info.get("settings", {})
    known = {k: v for k, v in stored.items() if k in KINDS[kind].defaults}
    featurizer = settle(kind, form, lengths=lengths, settings={**known, **(settings or {})})
    check_holds(source, kind, featurizer.kind.needs(featurizer.settings))
    return featurizer


def _as_parts(
    parts: Part | Source | str | os.PathLike[str] | Sequence[Part], reading: Reading
) -> tuple[Part, ...]:
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        if reading.kind or reading.settings:
            raise UserError("kind and settings belong to each Part of a mixture; give them there")
        if not parts:
            raise UserError("a mixture needs at least one part; give examples to read")
        return tuple(parts)
    if isinstance(parts, Part):
        return (parts,)
    return (Part(parts, reading.kind, reading.settings or {}),)


def _documents(source: Source) -> np.ndarray:
    """The document of every example, by which those of one document are kept apart."""
    if source.documents is None:
        raise UserError(
            "separate_documents needs examples whose documents are known; tokenize passages "
            "made by `qac prepare`, or set it to False"
        )
    return source.documents


def _backend(reading: Reading, wanted: str, remainder: str) -> str:
    """What makes the batches; seqio cannot do all that the loader can."""
    backend = feeding.choose(reading.feed if wanted == "auto" else wanted)
    more = reading.separate_documents or remainder == "pad" or reading.workers > 0
    if backend == feeding.SEQIO and more:
        raise UserError(
            "feed 'seqio' cannot keep the examples of a document apart, pad the last batch or "
            "use worker processes; leave separate_documents and workers out, or use 'grain'"
        )
    return backend


def _identity(
    sources: Sequence[Source],
    featurizers: Sequence[Featurizer],
    parts: Sequence[Part],
    order: tuple[Any, ...],
) -> str:
    """A hash of all that the batches depend on, so that no state goes on with other ones."""
    facts = {
        "parts": [
            (source.identity, featurizer.kind.name, featurizer.settings, part.weight)
            for source, featurizer, part in zip(sources, featurizers, parts, strict=True)
        ],
        "lengths": featurizers[0].lengths,
        "form": [dataclasses.asdict(featurizer.form) for featurizer in featurizers],
        "order": order,
    }
    text = json.dumps(facts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_alike(featurizers: Sequence[Featurizer]) -> None:
    first = featurizers[0].spec(1)
    for featurizer in featurizers[1:]:
        if featurizer.spec(1) != first or featurizer.form.pad != featurizers[0].form.pad:
            raise UserError(
                f"kinds {featurizers[0].kind.name} and {featurizer.kind.name} give batches of "
                f"different features or lengths, so they cannot be mixed; set the same lengths"
            )


def preview(
    artifact: Artifact, count: int, *, task: str = "", seed: int = 0
) -> list[dict[str, Any]]:
    """The first examples of an artefact, read as `task` (default: the kind it was made for)."""
    source = Examples(artifact)
    settings = _all_strategies(source) if (task or source.info["task"]) == "augtriever" else {}
    featurizer = make_featurizer(source, task, settings)
    tokenizer = tokenizers.load(source.tokenizer_folder)
    rng = ExampleRng()

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(part) for part in value]
        return tokenizer.backend.decode(value.tolist(), skip_special_tokens=False)

    previews = []
    indices = np.arange(min(count, source.count))
    for index, record in zip(indices.tolist(), source.read(indices), strict=True):
        example = featurizer.example(record, rng.seek(seed, 0, index))
        texts: dict[str, Any] = {}
        for name, feature in featurizer.features.items():
            if feature.like:
                continue  # token types are of no use to a reader
            value = example[name]
            texts[name] = shown(value) if feature.padded else np.asarray(value).tolist()
        previews.append(texts)
    return previews


def _all_strategies(source: Examples) -> dict[str, Any]:
    """Every strategy whose texts are stored, with equal weights."""
    named = [name for name in source.info["schema"] if name + "_lengths" in source.info["schema"]]
    return {"strategies": dict.fromkeys(["random_crop", *named], 1.0)}
