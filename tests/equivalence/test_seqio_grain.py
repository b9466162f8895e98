"""For every kind: the seqio task and the loader give the same examples in the same order."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import toy_examples
from toy_examples import SETTINGS

from qac_jax.data import tasks
from qac_jax.data.kinds import KINDS
from qac_jax.data.loader import Loader, Part


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's own imports
    import seqio

FIRST = 200
LENGTHS = {"passage": 24, "context": 12, "tokens": 20, "inputs": 20, "targets": 9}
MORE = {"query": 8, "passages": 16, "pair": 24, "pairs": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seqio")
    for kind in KINDS:
        toy_examples.tokenized(folder, kind)
    return folder


def test_every_kind_has_toy_examples() -> None:
    assert set(toy_examples.KINDS) == set(KINDS)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_task_equals_loader(folder: Path, kind: str, shuffle: bool) -> None:
    examples, settings = str(folder / f"examples_{kind}"), SETTINGS.get(kind, {})
    name = tasks.register(examples, settings=settings)
    assert name == f"qac_{kind}"
    task = seqio.get_mixture_or_task(name)
    lengths = limits(kind)
    dataset = task.get_dataset(lengths, split="train", shuffle=shuffle, seed=7, num_epochs=None)
    loader = Loader(
        examples,
        batch_size=8,
        settings=settings,
        lengths=lengths,
        seed=7,
        shuffle=shuffle,
        remainder="wrap",
        backend="grain",
    )
    with loader:
        rows = itertools.islice(example_rows(loader), FIRST)
        found = itertools.islice(dataset.as_numpy_iterator(), FIRST)
        for row, example in itertools.zip_longest(rows, found):
            assert_same(row, example)


def test_a_second_epoch_is_drawn_anew(folder: Path) -> None:
    name = tasks.register(str(folder / "examples_two_spans"))
    loader = Loader(str(folder / "examples_two_spans"), batch_size=1, lengths=limits("two_spans"))
    count = loader.examples_per_epoch
    task = seqio.get_mixture_or_task(name)
    dataset = task.get_dataset(limits("two_spans"), shuffle=True, seed=0, num_epochs=2)
    found = list(dataset.as_numpy_iterator())
    assert len(found) == 2 * count
    with loader:
        for row, example in zip(example_rows(loader), found, strict=False):
            assert_same(row, example)


def test_mixture_equals_loader(folder: Path) -> None:
    parts = [
        Part(str(folder / "examples_passage_query"), weight=3),
        Part(str(folder / "examples_mixed"), settings={"probabilities": {"nearby": 1}}, weight=1),
    ]
    name = tasks.register(parts)
    lengths = limits("mixed")
    dataset = seqio.get_mixture_or_task(name).get_dataset(
        lengths, shuffle=True, seed=3, num_epochs=None
    )
    with Loader(parts, batch_size=16, lengths=lengths, seed=3) as loader:
        rows = itertools.islice(example_rows(loader), FIRST)
        found = itertools.islice(dataset.as_numpy_iterator(), FIRST)
        for row, example in itertools.zip_longest(rows, found):
            assert_same(row, example)


def test_shards_share_out_an_epoch(folder: Path) -> None:
    name = tasks.register(str(folder / "examples_mlm"))
    task = seqio.get_mixture_or_task(name)

    def texts(info: Any) -> list[bytes]:
        dataset = task.get_dataset(limits("mlm"), seed=1, shuffle=True, shard_info=info)
        return [example["tokens"].tobytes() for example in dataset.as_numpy_iterator()]

    whole = texts(None)
    shards = [texts(seqio.ShardInfo(i, 3)) for i in range(3)]
    assert [shards[i % 3][i // 3] for i in range(len(whole))] == whole


def test_vocabulary_is_hugging_face(folder: Path) -> None:
    words = tasks.vocabulary(str(folder / "tokenizer"))
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    text = "Tiding mills, the MATRIX!"
    ids = reference.encode(text, add_special_tokens=False).ids
    assert list(words.encode(text)) == ids
    assert words.encode_tf(text).numpy().tolist() == ids
    assert words.decode(ids) == words.decode_tf(np.array(ids)).numpy().decode()
    assert words.vocab_size == reference.get_vocab_size()


def limits(kind: str) -> dict[str, int]:
    names = features_of(kind)
    return {name: length for name, length in {**LENGTHS, **MORE}.items() if name in names}


def features_of(kind: str) -> set[str]:
    settings = {**KINDS[kind].defaults, **SETTINGS.get(kind, {})}
    return set(KINDS[kind].features(settings))


def example_rows(loader: Loader) -> Any:
    """The loader's batches row by row, single texts without padding, as seqio has them."""
    for batch in loader:
        for row in range(loader.rows):
            example = {}
            for name, array in batch.items():
                if name.endswith("_length") and array.ndim == 1:
                    continue
                value = array[row]
                length = batch.get(f"{name.removesuffix('_types')}_length")
                if length is not None and length.ndim == 1:
                    value = value[: length[row]]
                example[name] = value
            yield example


def assert_same(row: dict[str, np.ndarray] | None, example: dict[str, np.ndarray] | None) -> None:
    assert row is not None and example is not None
    assert set(row) == set(example)
    for name, value in row.items():
        np.testing.assert_array_equal(value, example[name], err_msg=name)
