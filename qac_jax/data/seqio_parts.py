"""What seqio tasks of the examples are made of: vocabulary, features, source, preprocessor, order.

TensorFlow and seqio are imported inside functions only.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax import extras
from qac_jax.data.examples import Examples
from qac_jax.data.featurizer import Featurizer
from qac_jax.data.kinds import KINDS
from qac_jax.data.loader import Part, make_featurizer
from qac_jax.data.randomness import ExampleRng, permute
from qac_jax.data.sampler import Mixed
from qac_jax.text import tokenizers


# Records read in one call, because a call from TensorFlow into Python is slow.
_TOGETHER = 256


def import_quietly(module: str) -> Any:
    """TensorFlow or seqio, which warn about one another while they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return extras.load(module, "seqio", "reading examples through seqio")


def vocabulary(folder: str) -> Any:
    """The tokeniser of an artefact (or any Hugging Face folder) as a seqio Vocabulary."""
    return _vocabulary_class()(folder)


@functools.cache
def tensorflow() -> Any:
    """TensorFlow without the accelerators, whose memory is for JAX."""
    tf = import_quietly("tensorflow")
    tf.config.set_visible_devices([], "GPU")
    return tf


@functools.cache
def _vocabulary_class() -> Any:
    seqio = import_quietly("seqio")
    tf = tensorflow()

    base: Any = seqio.Vocabulary

    class HuggingFaceVocabulary(base):
        """Hugging Face's tokeniser: the ids of `tokenizers`, without special tokens."""

        def __init__(self, folder: str):
            super().__init__()
            self.folder = folder
            self.tokenizer = tokenizers.load(folder)

        def __eq__(self, other: object) -> bool:
            return (
                isinstance(other, HuggingFaceVocabulary)
                and self.tokenizer.identity == other.tokenizer.identity
            )

        def __hash__(self) -> int:
            return hash(self.tokenizer.identity)

        def _role(self, *roles: str) -> int | None:
            return next((self.tokenizer.special(r) for r in roles if self.tokenizer.has(r)), None)

        @property
        def bos_id(self) -> int | None:
            return self._role("bos", "cls")

        @property
        def eos_id(self) -> int | None:
            # Not [SEP]: seqio ends decoding at the first one, and pairs have two.
            return self._role("eos")

        @property
        def pad_id(self) -> int:
            return self.tokenizer.pad_id

        @property
        def unk_id(self) -> int | None:
            return self._role("unk")

        @property
        def _base_vocab_size(self) -> int:
            return self.tokenizer.vocab_size

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

    return HuggingFaceVocabulary


def output_features(featurizer: Featurizer, source: Any) -> dict[str, Any]:
    seqio = import_quietly("seqio")
    tf = tensorflow()

    if isinstance(source, Examples):
        words = vocabulary(source.tokenizer_folder)
    else:
        words = seqio.PassThroughVocabulary(source.info["vocab_size"])
    features = {}
    for name, (shape, dtype) in featurizer.spec(1).items():
        rank = len(shape) - 1
        if name.endswith("_length") and not rank:
            continue  # the length of a single text is that of its array
        features[name] = seqio.Feature(
            vocabulary=words, add_eos=False, dtype=tf.as_dtype(dtype), rank=rank
        )
    return features


def expected_features(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The features that examples of a kind will have, without their vocabulary."""
    seqio = import_quietly("seqio")
    tf = tensorflow()
    complete = {**{k: {} if v is ... else v for k, v in KINDS[kind].defaults.items()}, **settings}
    features = {}
    for name, feature in KINDS[kind].features(complete).items():
        rank, dtype = len(feature.axes), tf.as_dtype(feature.dtype)
        words = seqio.PassThroughVocabulary(0)
        features[name] = seqio.Feature(words, add_eos=False, dtype=dtype, rank=rank)
        if feature.padded and rank > 1 and not feature.like:
            features[f"{name}_length"] = seqio.Feature(
                words, add_eos=False, dtype=tf.int32, rank=rank - 1
            )
    return features


def as_text(decoded: Any, **_: Any) -> str:
    """What a generator wrote, or should have written."""
    return decoded if isinstance(decoded, str) else str(decoded)


def agreement(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """The share of equal texts, and the mean F1 of their words."""
    equal = [a == b for a, b in zip(targets, predictions, strict=True)]
    shared = [_f1(a.split(), b.split()) for a, b in zip(targets, predictions, strict=True)]
    return {"exact_match": float(np.mean(equal)), "f1": float(np.mean(shared))}


def _f1(target: list[str], prediction: list[str]) -> float:
    common = sum((Counter(target) & Counter(prediction)).values())
    total = len(target) + len(prediction)
    return 2 * common / total if total else 1.0


def slots_source(count: int) -> Any:
    """A source of positions in the epoch, which seqio shards and repeats before `_pair_up`."""
    seqio = import_quietly("seqio")
    tf = tensorflow()

    base: Any = seqio.DataSource

    class Slots(base):
        @property
        def supports_arbitrary_sharding(self) -> bool:
            return True

        @property
        def performs_internal_shuffling(self) -> bool:
            return True

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
            places = tf.data.Dataset.range(number, count, shards)
            here = len(range(number, count, shards))
            facts = {"here": here, "seed": -1 if seed is None else seed, "shuffle": shuffle}
            return places.map(
                lambda place: {"place": place, **{k: tf.constant(v) for k, v in facts.items()}}
            )

    return Slots(splits=["train"], num_input_examples={"train": count})


def pair_up(
    dataset: Any, sequence_length: Mapping[str, int] | None, *, source: Any, part: Part, crop: str
) -> Any:
    """Positions into examples: seqio repeats before this step, so epochs can be counted here."""
    tf = tensorflow()

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
    tf = tensorflow()

    counts = (1,) * len(datasets)
    plan = Mixed(counts, tuple(float(rate) for rate in rates), batch_size=1, seed=int(seed or 0))
    periods = tf.data.Dataset.range(1 << 40)

    def schedule(number: np.ndarray) -> np.ndarray:
        return plan.schedule(int(number))

    order = periods.map(
        lambda number: tf.ensure_shape(tf.numpy_function(schedule, [number], tf.int64), [None])
    ).unbatch()
    return tf.data.Dataset.choose_from_datasets(datasets, order, stop_on_empty_dataset=True)
