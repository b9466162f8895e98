"""seqio: the declared interface of the examples. Importing this module registers their tasks.

There is a task for every kind of example (`qac_mlm`, `qac_passage_query`, …), for every strategy of
AugTriever, its hybrids and half crops (`qac_augtriever_hybrid_all`, …_half), and mixtures of the
hybrids' strategies; docs/seqio.md shows their use. Where their examples lie is asked when they are
used: in QAC_EXAMPLES, or where `use` said.

A task yields the loader's examples in the loader's order for the same seed, because both are one
plan's slots (`data/sampler.py`) through one function (`Batches.examples`). `sequence_length` gives
the limits. Lists of texts (passages) are padded, with their lengths.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax import extras
from qac_jax.data.examples import Examples, Source
from qac_jax.data.featurizer import Featurizer, make_featurizer
from qac_jax.data.form import Form
from qac_jax.data.kinds import KINDS
from qac_jax.data.kinds.augtriever import STRATEGIES
from qac_jax.data.loader import Batch, Batches, opened, plan_of
from qac_jax.data.sampler import Plan
from qac_jax.errors import UserError, nearest
from qac_jax.text import tokenizers


if TYPE_CHECKING:
    from qac_jax.data.loader import Loader


with warnings.catch_warnings():  # about one another, while they are imported
    warnings.simplefilter("ignore")
    tf: Any = extras.load("tensorflow", "seqio", "reading examples through seqio")
    seqio: Any = extras.load("seqio", "seqio", "reading examples through seqio")
tf.config.set_visible_devices([], "GPU")  # their memory is for JAX

_Task: Any = seqio.Task
_Vocabulary: Any = seqio.Vocabulary
_DataSource: Any = seqio.DataSource

PREFIX = "qac_"
# The folder of the examples of all tasks that `use` gives none.
EXAMPLES = "QAC_EXAMPLES"
# Records read in one call, because a call from TensorFlow into Python is slow.
_TOGETHER = 256

_places: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {}


def use(folder: str, *names: str, settings: Mapping[str, Any] | None = None, **order: Any) -> None:
    """Says where the examples of these tasks lie (of all, if none is named), their settings, and
    their order, as `register` takes it."""
    known = [name for name in seqio.TaskRegistry.names() if name.startswith(PREFIX)]
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is not a task of ours; {nearest(name, known)}")
    for name in names or known:
        _places[name] = folder, settings or {}, order


def register(
    examples: Source | str,
    *,
    kind: str = "",
    settings: Mapping[str, Any] | None = None,
    crop: str = "",
    name: str = "",
    **order: Any,
) -> str:
    """Registers a Task for an examples artefact; returns its name.

    `order` is the loader's, where batches matter: batch_size, remainder, separate_documents.
    """
    of, made = _made(examples, kind, settings, crop, **order)
    name = name or PREFIX + of
    _forget(name)
    seqio.TaskRegistry.add(name, shuffle_buffer_size=None, **made, **_judging(of))
    return name


def _made(
    examples: Source | str,
    kind: str,
    settings: Mapping[str, Any] | None,
    crop: str = "",
    *,
    first: int = 0,
    batch_size: int = 1,
    **order: Any,
) -> tuple[str, dict[str, Any]]:
    """The kind of these examples, and a task's source, preprocessors (from position `first` of the
    run on) and features."""
    source = opened(examples)
    of = functools.partial(make_featurizer, source, kind, settings, crop=crop)
    featurizer = of()

    @functools.lru_cache(maxsize=1)
    def plan(seed: int, shuffle: bool) -> Plan:
        how = {"remainder": "wrap", **order}
        return plan_of(source, batch_size, seed=seed, shuffle=shuffle, **how)

    words: Any = seqio.PassThroughVocabulary(source.info["vocab_size"])
    if isinstance(source, Examples):
        words = vocabulary(source.tokenizer_folder)
    make = functools.partial(pair_up, source=source, of=of, plan=plan, first=first)
    return featurizer.kind.name, {
        "source": Positions(plan(0, True).examples_per_epoch),
        "preprocessors": [make],
        "output_features": output_features(featurizer, words),
    }


class LateTask(_Task):
    """A task whose examples are looked for when it is used, not when it is registered."""

    def __init__(self, name: str, kind: str, settings: Mapping[str, Any]):
        self.kind, self.settings, made = kind, dict(settings), KINDS[kind]
        complete = {n: {} if v is ... else v for n, v in made.defaults.items()} | self.settings
        expected = Featurizer(made, Form(), {}, complete, made.features(complete))
        features = output_features(expected, seqio.PassThroughVocabulary(0))
        rest: Any = {"source": None, "preprocessors": [], "shuffle_buffer_size": None}
        super().__init__(name, output_features=features, **rest, **_judging(kind))

    splits = ("train",)
    source = property(lambda self: self._found()["source"])
    preprocessors = property(lambda self: self._found()["preprocessors"])

    @property
    def output_features(self) -> Mapping[str, Any]:
        """The features of the stored examples. Before examples are named, as when seqio registers
        a mixture, features without a vocabulary."""
        try:
            return collections.OrderedDict(sorted(self._found()["output_features"].items()))
        except UserError:
            return self._output_features

    def _found(self) -> dict[str, Any]:
        folder, settings, order = _places.get(self.name, (os.environ.get(EXAMPLES, ""), {}, {}))
        if not folder:
            raise UserError(f"{self.name} needs examples; set {EXAMPLES}=FOLDER, or use(FOLDER)")
        return _known(folder, self.kind, json.dumps([{**self.settings, **settings}, order]))


@functools.lru_cache(maxsize=64)
def _known(folder: str, kind: str, how: str) -> dict[str, Any]:
    settings, order = json.loads(how)
    return _made(folder, kind, settings, **order)[1]


class HuggingFaceVocabulary(_Vocabulary):
    """The tokeniser of an artefact (or any Hugging Face folder), without special tokens."""

    def __init__(self, folder: str):
        super().__init__()
        self.tokenizer = tokenizers.load(folder)

    def __eq__(self, other: object) -> bool:
        theirs = other.tokenizer.identity if isinstance(other, HuggingFaceVocabulary) else None
        return self.tokenizer.identity == theirs

    def __hash__(self) -> int:
        return hash(self.tokenizer.identity)

    def _role(self, *roles: str) -> int | None:
        return next((self.tokenizer.special(r) for r in roles if self.tokenizer.has(r)), None)

    bos_id = property(lambda self: self._role("bos", "cls"))
    # Not [SEP]: seqio ends decoding at the first one, and pairs have two.
    eos_id = property(lambda self: self._role("eos"))
    pad_id = property(lambda self: self.tokenizer.pad_id)
    unk_id = property(lambda self: self._role("unk"))
    _base_vocab_size = property(lambda self: self.tokenizer.vocab_size)

    def _encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def _encode_tf(self, s: Any) -> Any:
        def encode(text: bytes | np.ndarray) -> np.ndarray:
            plain = np.asarray(text, object).item().decode()  # eagerly, an array without axes
            return np.array(self.tokenizer.encode(plain), np.int32)

        s = tf.convert_to_tensor(s, tf.string)
        return tf.ensure_shape(tf.numpy_function(encode, [s], tf.int32), [None])

    def _decode_tf(self, ids: Any) -> Any:
        def decode(rows: np.ndarray) -> np.ndarray:
            texts = [self.tokenizer.decode(row) for row in rows.reshape(-1, rows.shape[-1])]
            return np.array(texts, object).reshape(rows.shape[:-1])

        ids = tf.convert_to_tensor(ids)
        return tf.ensure_shape(tf.numpy_function(decode, [ids], tf.string), ids.shape[:-1])


vocabulary = HuggingFaceVocabulary


def output_features(featurizer: Featurizer, words: Any) -> dict[str, Any]:
    """The features of a task; the length of a single text is that of its array."""
    return {
        name: seqio.Feature(
            vocabulary=words, add_eos=False, dtype=tf.as_dtype(dtype), rank=len(shape) - 1
        )
        for name, (shape, dtype) in featurizer.spec(1).items()
        if not name.endswith("_length") or len(shape) > 1
    }


def agreement(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """The share of equal texts, and the mean F1 of their words."""

    def f1(target: list[str], prediction: list[str]) -> float:
        total = len(target) + len(prediction)
        return 2 * (Counter(target) & Counter(prediction)).total() / total if total else 1.0

    both = list(zip(targets, predictions, strict=True))
    exact, f1s = np.mean([(a == b, f1(a.split(), b.split())) for a, b in both], axis=0)
    return {"exact_match": float(exact), "f1": float(f1s)}


class Positions(_DataSource):
    """A source of positions in the epoch, which seqio shards and repeats before `pair_up`."""

    def __init__(self, count: int):
        super().__init__(splits=["train"], num_input_examples={"train": count})
        self._count = count

    supports_arbitrary_sharding = True
    performs_internal_shuffling = True

    def list_shards(self, split: str) -> Sequence[str]:
        return [split]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        **_: Any,
    ) -> Any:
        number, shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        here = range(number, self._count, shards)
        facts = {"here": len(here), "seed": -1 if seed is None else seed, "shuffle": shuffle}
        constants = {name: tf.constant(value) for name, value in facts.items()}
        places = tf.data.Dataset.range(here.start, here.stop, here.step)
        return places.map(lambda place: {"place": place, **constants})


def pair_up(
    dataset: Any,
    sequence_length: Mapping[str, int] | None,
    *,
    source: Source,
    of: Callable[..., Featurizer],
    plan: Callable[[int, bool], Plan],
    first: int,
) -> Any:
    """Positions into examples: seqio repeats before this step, so epochs can be counted here."""
    padded = of().lengths
    # The limit of a list of texts may be in seqio's form, (texts, tokens).
    limits = {
        name: int(np.atleast_1d(limit)[-1])
        for name, limit in (sequence_length or {}).items()
        if name in padded and limit is not None
    }
    featurizer = of(lengths=limits)
    spec = featurizer.spec(1)

    def pairs(serial, place, here, seed, shuffle):
        number = max(0, int(seed[0]))
        order = plan(number, bool(shuffle[0]))
        slots = order.slots(place + serial // here * order.examples_per_epoch)
        make = Batches(source, featurizer, order, seed=number, rows=(0, 1))
        batch = featurizer.batch(make.examples(slots))
        return [batch[name] for name in spec]

    def call(serial: Any, slot: Mapping[str, Any]) -> dict[str, Any]:
        arguments = [serial, *(slot[k] for k in ("place", "here", "seed", "shuffle"))]
        arrays = tf.numpy_function(pairs, arguments, [tf.as_dtype(d) for _, d in spec.values()])
        return {
            name: tf.ensure_shape(array, (None, *shape[1:]))
            for (name, (shape, _)), array in zip(spec.items(), arrays, strict=True)
        }

    def trimmed(example: dict[str, Any]) -> dict[str, Any]:
        for name, feature in featurizer.features.items():
            if feature.padded and len(feature.axes) == 1:
                example[name] = example[name][: example[f"{feature.like or name}_length"]]
        return {n: v for n, v in example.items() if not n.endswith("_length") or v.shape.rank}

    dataset = dataset.enumerate().skip(first).batch(_TOGETHER).map(call)
    return dataset.unbatch().map(trimmed)


def through_seqio(loader: Loader, start: int, stop: int | None) -> Generator[Batch]:
    """The trainer's batches through seqio: start, start + 1, … before stop (None: endless).

    It shows that the tasks are what we train on; the loader's own feed is faster.
    """
    featurizer, size = loader.featurizer, loader.batch_size
    name = register(
        loader.source,
        kind=featurizer.kind.name,
        settings=featurizer.settings,
        crop=featurizer.form.crop,
        name=f"{PREFIX}feed_{loader.identity[:16]}",
        first=start * size,
        **loader.order,
    )
    dataset = seqio.get_mixture_or_task(name).get_dataset(
        featurizer.lengths, split="train", shuffle=loader.shuffle, seed=loader.seed, num_epochs=None
    )
    examples = iter(dataset.as_numpy_iterator())
    own = slice(*loader.here)
    for _ in itertools.count(start) if stop is None else range(start, stop):
        batch = list(itertools.islice(examples, size))
        yield featurizer.batch([_unpadded(example, featurizer) for example in batch[own]])


def dumped(folder: str, count: int) -> str:
    """The first examples of a folder's task as text, in seqio's order for the seed 0."""
    task = seqio.get_mixture_or_task(register(folder))
    lines = [f"{task.name}: {task.num_input_examples('train'):,} examples a pass"]
    for example in task.get_dataset(None, shuffle=True, seed=0).take(count).as_numpy_iterator():
        for name, value in example.items():
            rows = value.reshape(-1, value.shape[-1] if value.ndim else 1).tolist()
            if value.ndim and value.dtype == np.int32 and not name.endswith(("_length", "_types")):
                rows = [task.output_features[name].vocabulary.decode(row) for row in rows]
            lines.append(f"  {name} {value.shape}: {' | '.join(map(str, rows))}")
    return "\n".join(lines)


def _unpadded(example: Mapping[str, np.ndarray], featurizer: Featurizer) -> dict[str, Any]:
    """An example as the kind's function makes it: lists of texts without their padding."""
    result: dict[str, Any] = {}
    for name, feature in featurizer.features.items():
        result[name] = example[name]
        if feature.padded and len(feature.axes) > 1:
            sizes = example[f"{feature.like or name}_length"].ravel()
            rows = example[name].reshape(len(sizes), -1)
            result[name] = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    return result


def _judging(kind: str) -> dict[str, Any]:
    """The texts of a generator, which `seqio.Evaluator` compares."""
    if kind != "seq2seq":
        return {}
    return {"postprocess_fn": lambda decoded, **_: str(decoded), "metric_fns": [agreement]}


def _forget(name: str) -> None:
    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
        if name in registry.names():
            registry.remove(name)


def _register_all() -> None:
    declared: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, {}) for kind in KINDS}
    for strategy, shares in STRATEGIES.items():
        whole = {"strategies": shares, "whole_documents": True}  # as the recipes
        declared[f"augtriever_{strategy}"] = "augtriever", whole
        declared[f"augtriever_{strategy}_half"] = "augtriever", {**whole, "random_crop_share": 0.5}
    for name, (kind, settings) in declared.items():
        _forget(PREFIX + name)
        seqio.TaskRegistry.add_provider(PREFIX + name, LateTask(PREFIX + name, kind, settings))
    for name, shares in STRATEGIES.items():
        if len(shares) > 1:
            named = [(f"{PREFIX}augtriever_{strategy}", rate) for strategy, rate in shares.items()]
            _forget(f"{PREFIX}augtriever_{name}_mixture")
            seqio.MixtureRegistry.add(f"{PREFIX}augtriever_{name}_mixture", named)


_register_all()
