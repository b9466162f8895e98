"""seqio: the declared interface of the examples. Importing this module registers their tasks.

    QAC_EXAMPLES=out/examples python
    import qac_jax.data.tasks                              # T5X: MIXTURE_OR_TASK_MODULE
    seqio.get_mixture_or_task("qac_passage_query").get_dataset(
        {"passage": 144, "context": 32}, split="train", shuffle=True, seed=0, num_epochs=None)

There is a task for every kind of example (`qac_mlm`, `qac_seq2seq`, …), one for every strategy of
AugTriever (`qac_augtriever_doc_title`, …), and its mixtures of strategies with their rates
(`qac_augtriever_hybrid_all`, …). Where their examples lie is asked when they are used: in
QAC_EXAMPLES, or where `use` said. `register` makes a task or a mixture of given examples at once.

A task yields the loader's examples in the loader's order for the same seed: both use
`randomness.permute` for the order and call the same pair function. `sequence_length` gives the
limits. Lists of texts (passages) are padded, with their lengths.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax.data import seqio_parts
from qac_jax.data.featurizer import Featurizer
from qac_jax.data.feeding import Batch
from qac_jax.data.kinds import KINDS
from qac_jax.data.loader import Part, make_featurizer
from qac_jax.data.sampler import Straight
from qac_jax.data.seqio_parts import vocabulary
from qac_jax.errors import UserError, nearest


if TYPE_CHECKING:
    from qac_jax.data.loader import Loader


__all__ = ["EXAMPLES", "MIXTURES", "PREFIX", "STRATEGIES", "register", "use", "vocabulary"]

seqio: Any = seqio_parts.import_quietly("seqio")
_Task: Any = seqio.Task

PREFIX = "qac_"
# The folder of the examples of all tasks that `use` gives none.
EXAMPLES = "QAC_EXAMPLES"

# AugTriever's strategies with one task each.
STRATEGIES = (
    *("random_crop", "doc_title", "doc_anchor", "qext_bm25", "qext_plm", "qext_self"),
    *("tqgen_topic", "tqgen_title", "tqgen_absum", "tqgen_exsum", "qgen_d2q", "paq"),
)
# Its mixtures (recipes/augtriever.py): Hybrid-TQGen and Hybrid-All.
_TQGEN = ("tqgen_topic", "tqgen_title", "tqgen_absum", "tqgen_exsum")
MIXTURES: dict[str, dict[str, float]] = {
    "hybrid_tqgen": {"random_crop": 0.2, **dict.fromkeys(_TQGEN, 0.2)},
    "hybrid_all": {
        "random_crop": 0.2,
        "qext_plm": 0.1,
        "doc_title": 0.14,
        **dict.fromkeys(_TQGEN, 0.14),
    },
}

_places: dict[str, tuple[str, Mapping[str, Any]]] = {}


def use(folder: str, *names: str, settings: Mapping[str, Any] | None = None) -> None:
    """Says where the examples of these tasks lie (of all, if none is named), and their settings."""
    known = [name for name in seqio.TaskRegistry.names() if name.startswith(PREFIX)]
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is not a task of ours; {nearest(name, known)}")
    for name in names or known:
        _places[name] = folder, settings or {}


def register(
    parts: Part | Sequence[Part] | str,
    *,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    crop: str = "",
    name: str = "",
) -> str:
    """Registers a Task for an examples artefact, or a Mixture for several; returns its name."""
    if not isinstance(parts, Part | str):
        return _register_mixture(parts, crop, name)
    part = parts if isinstance(parts, Part) else Part(parts, kind, settings or {})
    source = part.opened()
    featurizer = make_featurizer(source, part.kind, part.settings, crop=crop)
    name = name or PREFIX + featurizer.kind.name
    _forget(name)
    seqio.TaskRegistry.add(
        name,
        source=seqio_parts.slots_source(source.count),
        preprocessors=[functools.partial(seqio_parts.pair_up, source=source, part=part, crop=crop)],
        output_features=seqio_parts.output_features(featurizer, source),
        shuffle_buffer_size=None,  # the source shuffles
        **_judging(featurizer.kind.name),
    )
    return name


def _register_mixture(parts: Sequence[Part], crop: str, name: str) -> str:
    name = name or PREFIX + "mixture"
    tasks = [  # in the order of their names, by which seqio sorts them
        register(part, crop=crop, name=f"{name}_{number:03d}") for number, part in enumerate(parts)
    ]
    _forget(name)
    seqio.MixtureRegistry.add(
        name,
        [(task, part.weight) for task, part in zip(tasks, parts, strict=True)],
        sample_fn=seqio_parts.interleave,
    )
    return name


class LateTask(_Task):
    """A task whose examples are looked for when it is used, not when it is registered."""

    def __init__(self, name: str, kind: str, settings: Mapping[str, Any]):
        self.kind, self.settings = kind, dict(settings)
        super().__init__(
            name,
            source=None,
            output_features=seqio_parts.expected_features(kind, settings),
            preprocessors=[],
            shuffle_buffer_size=None,
            **_judging(kind),
        )

    @property
    def source(self) -> Any:
        return self._made()[0]

    @property
    def splits(self) -> Sequence[str]:
        return ("train",)

    @property
    def preprocessors(self) -> Sequence[Any]:
        return self._made()[1]

    @property
    def output_features(self) -> Mapping[str, Any]:
        """Those of the examples; without a vocabulary where there are none of this kind.

        seqio asks for them when a mixture is registered; reading from the task says what is wrong.
        """
        try:
            return self._made()[2]
        except UserError:
            return self._output_features

    def _place(self) -> tuple[str, Mapping[str, Any]]:
        return _places.get(self.name, (os.environ.get(EXAMPLES, ""), {}))

    def _made(self) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        folder, settings = self._place()
        if not folder:
            raise UserError(
                f"{self.name} does not know where its examples are; set {EXAMPLES}=FOLDER, or call "
                "qac_jax.data.tasks.use(FOLDER)"
            )
        return _made(folder, self.kind, json.dumps({**self.settings, **settings}, sort_keys=True))


@functools.lru_cache(maxsize=64)
def _made(folder: str, kind: str, settings: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """Source, preprocessors and features of examples that are read as a kind."""
    part = Part(folder, kind, json.loads(settings))
    source = part.opened()
    featurizer = make_featurizer(source, part.kind, part.settings)
    features = seqio_parts.output_features(featurizer, source)
    return (
        seqio_parts.slots_source(source.count),
        (functools.partial(seqio_parts.pair_up, source=source, part=part, crop=""),),
        collections.OrderedDict(sorted(features.items())),
    )


def _judging(kind: str) -> dict[str, Any]:
    """What `seqio.Evaluator` compares: the texts of a generator."""
    if kind != "seq2seq":
        return {}
    return {"postprocess_fn": seqio_parts.as_text, "metric_fns": [seqio_parts.agreement]}


def _forget(name: str) -> None:
    """Removes a task of the same name from an earlier call."""
    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
        if name in registry.names():
            registry.remove(name)


def _register_all() -> None:
    declared: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, {}) for kind in KINDS}
    for strategy in STRATEGIES:
        settings = {"strategies": {strategy: 1.0}}
        declared[f"augtriever_{strategy}"] = "augtriever", settings
    for name, (kind, settings) in declared.items():
        _forget(PREFIX + name)
        seqio.TaskRegistry.add_provider(PREFIX + name, LateTask(PREFIX + name, kind, settings))
    for name, rates in MIXTURES.items():
        name = f"{PREFIX}augtriever_{name}"
        _forget(name)
        seqio.MixtureRegistry.add(
            name,
            [(f"{PREFIX}augtriever_{strategy}", rate) for strategy, rate in rates.items()],
            sample_fn=seqio_parts.interleave,
        )


_register_all()


class SeqioFeed:
    """The trainer's batches through seqio: start, start + 1, … before stop (None: endless).

    It shows that the tasks are what we train on, and serves whoever adds preprocessors to them. The
    loader's own feeds are faster, and continue a run without reading what came before.
    """

    def __init__(self, loader: Loader, start: int, stop: int | None):
        self._featurizer = loader.featurizers[0]
        self._size, self._rows = loader.batch_size, loader.here
        self._left = None if stop is None else max(stop - start, 0)
        plan = loader.plan
        name = register(
            loader.parts[0] if len(loader.parts) == 1 else loader.parts,
            crop=self._featurizer.form.crop,
            name=f"{PREFIX}feed_{loader.identity[:16]}",
        )
        dataset = seqio.get_mixture_or_task(name).get_dataset(
            self._featurizer.lengths,
            split="train",
            shuffle=loader.shuffle,
            seed=loader.seed,
            num_epochs=None,
        )
        # Where an epoch's last examples fill no batch, they are read and left out.
        count, used = 1, 1
        if isinstance(plan, Straight) and plan.remainder == "drop":
            count, used = plan.count, plan.examples_per_epoch
        epoch, place = divmod(start * self._size, used)
        self._first = epoch * count + place
        numbered = zip(
            itertools.count(self._first),
            dataset.skip(self._first).as_numpy_iterator(),
            strict=False,
        )
        self._examples: Iterator[Any] = (
            example for number, example in numbered if number % count < used
        )

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._left == 0:
            raise StopIteration
        self._left = None if self._left is None else self._left - 1
        batch = list(itertools.islice(self._examples, self._size))
        if len(batch) < self._size:
            raise StopIteration
        first, last = self._rows
        return self._featurizer.batch([_unpadded(e, self._featurizer) for e in batch[first:last]])

    def close(self) -> None:
        """Lets go of the pipeline, which ends its threads."""
        self._examples = iter(())


def _unpadded(example: Mapping[str, np.ndarray], featurizer: Featurizer) -> dict[str, Any]:
    """An example as the kind's function makes it: lists of texts without their padding."""
    result: dict[str, Any] = {}
    for name, feature in featurizer.features.items():
        value: Any = example[name]
        group = tuple(int(axis) for axis in feature.axes[:-1])
        if feature.padded and group:
            sizes = example[f"{feature.like or name}_length"].ravel()
            rows = value.reshape(-1, value.shape[-1])
            value = [row[:size] for row, size in zip(rows, sizes, strict=True)]
        result[name] = value
    return result
