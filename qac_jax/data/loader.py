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
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.data import feeding
from qac_jax.data.batches import Batch, Batches
from qac_jax.data.examples import Examples, Source, check_holds
from qac_jax.data.featurizer import Featurizer, settle
from qac_jax.data.form import Form
from qac_jax.data.kinds import KINDS
from qac_jax.data.reading import Reading
from qac_jax.data.sampler import make_plan
from qac_jax.data.workers import Spec, usual
from qac_jax.errors import UserError, nearest


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
        from qac_jax.data import seqio_feed  # which imports TensorFlow

        return seqio_feed.SeqioFeed(self, self.step, self.steps)

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
