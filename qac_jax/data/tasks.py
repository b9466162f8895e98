"""seqio: the declared interface of the examples. Importing this module registers their tasks.

There is a task for every kind of example (`qac_mlm`, `qac_seq2seq`, …), one for every strategy of
AugTriever (`qac_augtriever_doc_title`, …), and its mixtures of strategies with their rates
(`qac_augtriever_hybrid_all`, …); docs/seqio.md shows their use. Where their examples lie is asked
when they are used: in QAC_EXAMPLES, or where `use` said.

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
import warnings
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qac_jax import extras
from qac_jax.data.examples import Examples
from qac_jax.data.featurizer import Featurizer, make_featurizer
from qac_jax.data.form import Form
from qac_jax.data.kinds import KINDS
from qac_jax.data.loader import Batch, Part
from qac_jax.data.randomness import ExampleRng, permute
from qac_jax.data.sampler import Mixed, Straight
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
        name = name or PREFIX + "mixture"
        rates = {}
        for number, part in enumerate(parts):  # in the order by which seqio sorts their names
            rates[register(part, crop=crop, name=f"{name}_{number:03d}")] = part.weight
        return _add_mixture(name, rates)
    part = parts if isinstance(parts, Part) else Part(parts, kind, settings or {})
    of, made = _made(part, crop)
    name = name or PREFIX + of
    _forget(name)
    seqio.TaskRegistry.add(name, shuffle_buffer_size=None, **made, **_judging(of))
    return name


def _add_mixture(name: str, rates: Mapping[str, float]) -> str:
    _forget(name)
    seqio.MixtureRegistry.add(name, list(rates.items()), sample_fn=interleave)
    return name


def _made(part: Part, crop: str = "") -> tuple[str, dict[str, Any]]:
    """The kind of these examples, and a task's source, preprocessors and features."""
    source = part.opened()
    featurizer = make_featurizer(source, part.kind, part.settings, crop=crop)
    words: Any = seqio.PassThroughVocabulary(source.info["vocab_size"])
    if isinstance(source, Examples):
        words = vocabulary(source.tokenizer_folder)
    return featurizer.kind.name, {
        "source": Slots(source.count),
        "preprocessors": [functools.partial(pair_up, source=source, part=part, crop=crop)],
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
        folder, settings = _places.get(self.name, (os.environ.get(EXAMPLES, ""), {}))
        if not folder:
            raise UserError(f"{self.name} needs examples; set {EXAMPLES}=FOLDER, or use(FOLDER)")
        return _known(folder, self.kind, json.dumps({**self.settings, **settings}, sort_keys=True))


@functools.lru_cache(maxsize=64)
def _known(folder: str, kind: str, settings: str) -> dict[str, Any]:
    return _made(Part(folder, kind, json.loads(settings)))[1]


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


class Slots(_DataSource):
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
    dataset: Any, sequence_length: Mapping[str, int] | None, *, source: Any, part: Part, crop: str
) -> Any:
    """Positions into examples: seqio repeats before this step, so epochs can be counted here."""
    padded = make_featurizer(source, part.kind, part.settings, crop=crop).lengths
    # The limit of a list of texts may be in seqio's form, (texts, tokens).
    limits = {
        name: int(np.atleast_1d(limit)[-1])
        for name, limit in (sequence_length or {}).items()
        if name in padded and limit is not None
    }
    featurizer = make_featurizer(source, part.kind, part.settings, limits, crop)
    spec = featurizer.spec(1)

    def pairs(serial, place, here, seed, shuffle):
        epoch = serial // here
        number = 0 if seed[0] < 0 else int(seed[0])
        index = permute(place, source.count, number, epoch) if shuffle[0] else place
        rng = ExampleRng()
        examples = [
            featurizer.example(record, rng.seek(number, e, i))
            for record, e, i in zip(source.read(index), epoch.tolist(), index.tolist(), strict=True)
        ]
        batch = featurizer.batch(examples)
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

    dataset = dataset.enumerate().batch(_TOGETHER).map(call)
    return dataset.unbatch().map(trimmed)


def interleave(datasets: Sequence[Any], rates: Sequence[float], seed: Any) -> Any:
    """The loader's order of sources (`sampler.Mixed`), which does not depend on their sizes."""
    weights = tuple(float(rate) for rate in rates)
    plan = Mixed(1, len(weights), int(seed or 0), (1,) * len(weights), weights)
    periods = tf.data.Dataset.range(1 << 40)

    def schedule(number: np.ndarray) -> np.ndarray:
        return plan.schedule(int(number))

    order = periods.map(
        lambda number: tf.ensure_shape(tf.numpy_function(schedule, [number], tf.int64), [None])
    ).unbatch()
    return tf.data.Dataset.choose_from_datasets(datasets, order, stop_on_empty_dataset=True)


def through_seqio(loader: Loader, start: int, stop: int | None) -> Generator[Batch]:
    """The trainer's batches through seqio: start, start + 1, … before stop (None: endless).

    It shows that the tasks are what we train on; the loader's own feed is faster.
    """
    featurizer, size, plan = loader.featurizers[0], loader.batch_size, loader.plan
    name = register(
        loader.parts[0] if len(loader.parts) == 1 else loader.parts,
        crop=featurizer.form.crop,
        name=f"{PREFIX}feed_{loader.identity[:16]}",
    )
    dataset = seqio.get_mixture_or_task(name).get_dataset(
        featurizer.lengths, split="train", shuffle=loader.shuffle, seed=loader.seed, num_epochs=None
    )
    # Where an epoch's last examples fill no batch, they are read and left out.
    count = plan.count if isinstance(plan, Straight) else 1
    used = plan.examples_per_epoch if isinstance(plan, Straight) else 1
    epoch, place = divmod(start * size, used)
    first = epoch * count + place
    numbered = zip(itertools.count(first), dataset.skip(first).as_numpy_iterator(), strict=False)
    examples = (example for number, example in numbered if number % count < used)
    own = slice(*loader.here)
    for _ in itertools.count(start) if stop is None else range(start, stop):
        batch = list(itertools.islice(examples, size))
        yield featurizer.batch([_unpadded(example, featurizer) for example in batch[own]])


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
    for strategy in STRATEGIES:
        settings = {"strategies": {strategy: 1.0}}
        declared[f"augtriever_{strategy}"] = "augtriever", settings
    for name, (kind, settings) in declared.items():
        _forget(PREFIX + name)
        seqio.TaskRegistry.add_provider(PREFIX + name, LateTask(PREFIX + name, kind, settings))
    for name, rates in MIXTURES.items():
        named = {f"{PREFIX}augtriever_{strategy}": rate for strategy, rate in rates.items()}
        _add_mixture(f"{PREFIX}augtriever_{name}", named)


_register_all()
