"""For every kind: the seqio task and the loader give the same examples in the same order."""

import dataclasses
import itertools
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import toy_examples
import toy_recipes
from toy_examples import SETTINGS

from qac_jax import artifacts
from qac_jax.data import tasks
from qac_jax.data.kinds import KINDS
from qac_jax.data.kinds.augtriever import STRATEGIES
from qac_jax.data.loader import Loader
from qac_jax.errors import UserError
from qac_jax.stages.tokenize import Tokenize


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's own imports
    import seqio

FIRST = 200
LENGTHS = {"passage": 24, "context": 12, "tokens": 20, "inputs": 20, "targets": 9}
LENGTHS |= {"query": 8, "passages": 16, "pair": 24, "pairs": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seqio")
    for kind in KINDS:
        toy_examples.tokenized(folder, kind)
    drawn = {name for shares in STRATEGIES.values() for name in shares}
    toy_examples.of_strategies(folder, sorted(drawn - {"random_crop", "qext_self"}))
    return folder


@pytest.mark.parametrize(
    ("kind", "shuffle"), [*((kind, True) for kind in KINDS), ("passage_query", False)]
)
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
    )
    with loader:
        assert_first_same(loader, dataset)


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


@pytest.mark.parametrize(
    "kind, more",
    [
        ("passage_query", {}),
        ("passage_query", {"host": (1, 2)}),
        ("passage_query", {"separate_documents": True}),
        ("triples", {"remainder": "wrap"}),
        ("groups", {}),
    ],
)
def test_batches_of_either_feed(folder: Path, kind: str, more: dict[str, Any]) -> None:
    """Over the ends of epochs, and from the middle of one."""

    def loader(feed: str, step: int) -> Loader:
        made = Loader(
            str(folder / f"examples_{kind}"),
            batch_size=8,
            settings=SETTINGS.get(kind, {}),
            lengths=limits(kind),
            seed=3,
            feed=feed,
            **more,
        )
        made.restore({"step": step, "identity": made.identity})
        return made

    count = loader("grain", 0).batches_per_epoch
    for step in (0, 2 * count - 1):
        with loader("grain", step) as ours, loader("seqio", step) as theirs:
            assert ours.identity == theirs.identity
            for one, other in itertools.islice(zip(ours, theirs, strict=True), count + 2):
                assert one.keys() == other.keys()
                for name, array in one.items():
                    np.testing.assert_array_equal(array, other[name], err_msg=name)
                    assert array.dtype == other[name].dtype, name


def test_what_seqio_cannot_feed(folder: Path) -> None:
    with pytest.raises(UserError, match="leave out --workers"):
        Loader(str(folder / "examples_mlm"), batch_size=2, feed="seqio", workers=1)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks as they are after the import: nobody has said where examples are."""
    monkeypatch.setattr(tasks, "_places", {})
    monkeypatch.delenv(tasks.EXAMPLES, raising=False)
    tasks._register_all()


def test_tasks_by_name(folder: Path, places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        assert seqio.get_mixture_or_task(f"qac_{kind}").output_features
    task = seqio.get_mixture_or_task("qac_passage_query")
    with pytest.raises(UserError, match="set QAC_EXAMPLES=FOLDER"):
        task.get_dataset(limits("passage_query"))
    examples = str(folder / "examples_passage_query")
    monkeypatch.setenv(tasks.EXAMPLES, examples)
    late = list(task.get_dataset(limits("passage_query"), seed=1).as_numpy_iterator())
    named = {name: f.vocabulary for name, f in task.output_features.items()}
    registered = seqio.get_mixture_or_task(tasks.register(examples))
    assert {name: f.vocabulary for name, f in registered.output_features.items()} == named
    now = registered.get_dataset(limits("passage_query"), seed=1).as_numpy_iterator()
    for one, other in itertools.zip_longest(late, now):
        assert_same(one, other)
    with pytest.raises(UserError, match="did you mean 'qac_mlm'"):
        tasks.use(examples, "qac_mml")


def test_strategies_of_augtriever_with_their_rates(folder: Path, places: None) -> None:
    """As one task by name, as the recipe draws them, and as a mixture of tasks."""
    shares = STRATEGIES["hybrid_all"]
    examples = str(folder / "examples_strategies")
    tasks.use(examples)

    def same_as_loader(name: str, settings: dict[str, Any]) -> None:
        lengths = {"passage": 24, "context": 12}
        task = seqio.get_mixture_or_task(f"qac_augtriever_{name}")
        dataset = task.get_dataset(lengths, shuffle=True, seed=3, num_epochs=None)
        how: dict[str, Any] = {"lengths": lengths, "seed": 3, "remainder": "wrap"}
        with Loader(examples, batch_size=16, settings=settings, **how) as loader:
            assert_first_same(loader, dataset)

    whole = {"whole_documents": True}
    same_as_loader("hybrid_all", {"strategies": shares, **whole})
    half = {"strategies": STRATEGIES["qext_plm"], "random_crop_share": 0.5}
    same_as_loader("qext_plm_half", {**half, **whole})
    mixture = seqio.get_mixture_or_task("qac_augtriever_hybrid_all_mixture")
    assert {task.name[15:]: mixture.get_rate(task) for task in mixture.tasks} == shares
    drawn = mixture.get_dataset({"passage": 24, "context": 12}, seed=3, num_epochs=None)
    assert set(next(drawn.as_numpy_iterator())) == {"passage", "context"}


RECIPES = [
    *(("msmarco_qac_cotmae", more) for more in ((), ("overlays/passage_pairs.gin",))),
    *(("msmarco_qac_cocondenser", (f"overlays/{n}.gin",)) for n in ("two_spans", "mixed")),
    ("msmarco_qac_cocondenser", ("QUERIES=2", "overlays/released.gin")),
    *(("augtriever_wiki", (f"STRATEGY={name}",)) for name in STRATEGIES),
    ("augtriever_cc", ("STRATEGY=qext_bm25", "LOSS=moco")),
    ("augtriever_adaptation", ()),
]


@pytest.mark.parametrize("name, more", RECIPES)
def test_recipes_are_fed_alike(folder: Path, name: str, more: tuple[str, ...]) -> None:
    """Query-as-context pre-training's and AugTriever's, by every strategy: drawn queries, separate
    documents, half crops, hybrids."""
    encoder = toy_recipes.stages(name, "overlays/seqio.gin", *more)["encoder"]
    reading = encoder.reading
    assert reading.feed == "seqio"
    kind = "strategies" if reading.kind == "augtriever" else reading.kind
    given: dict[str, Any] = {"batch_size": 16, "seed": 5}
    loaders = [
        Loader(folder / f"examples_{kind}", reading=how, **given)
        for how in (reading, dataclasses.replace(reading, feed="grain"))
    ]
    with loaders[0] as fed, loaders[1] as grain:
        for one, other in itertools.islice(zip(grain, fed, strict=True), FIRST // 16):
            assert one.keys() == other.keys()
            for key, array in one.items():
                np.testing.assert_array_equal(array, other[key], err_msg=key)


@pytest.mark.slow
def test_the_page_about_it(folder: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "seqio.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "pairs").symlink_to(folder / "examples_passage_query")
    program = block + "print(sorted(next(dataset.as_numpy_iterator())))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['context', 'passage']"
    for name in re.findall(r"`(qac_[a-z_]+)`", page):
        assert seqio.get_mixture_or_task(name), name
    (command,) = re.findall(r"`(QAC_EXAMPLES=.*?)`", page, re.S)
    command = " ".join(command.split()).replace("python", sys.executable, 1)
    given: dict[str, Any] = {"cwd": tmp_path, "input": "\n\nc\n", "text": True, "shell": True}
    shown = subprocess.run(command, capture_output=True, **given).stdout
    assert "'context':" in shown.partition("* Split: train *")[2]


def test_first_examples_as_text(folder: Path) -> None:
    examples = str(folder / "examples_passage_query")
    shown = Tokenize(dump_seqio=2).summary(artifacts.load(examples))
    with Loader(examples, batch_size=1, remainder="wrap") as loader:
        first = next(loader)
    ids = first["passage"][0, : first["passage_length"][0]].tolist()
    assert tasks.vocabulary(str(folder / "tokenizer")).decode(ids) in shown
    assert shown.startswith("qac_passage_query: ") and shown.count("  context (") == 2


@pytest.mark.slow
def test_packed_by_seqio_itself(folder: Path, places: None) -> None:
    """`seqio.get_dataset` packs a generator's pairs; no token is lost, none is invented."""
    tasks.use(str(folder / "examples_seq2seq"))
    lengths = {"inputs": 20, "targets": 9}

    def dataset(pack: bool) -> list[dict[str, Any]]:
        longer = {name: 4 * length for name, length in lengths.items()} if pack else lengths
        made = seqio.get_dataset(
            "qac_seq2seq",
            longer,
            dataset_split="train",
            shuffle=False,
            num_epochs=1,
            feature_converter=seqio.EncDecFeatureConverter(pack=pack),
        )
        return list(made.as_numpy_iterator())

    packed, whole = dataset(True), dataset(False)
    assert 0 < len(packed) < len(whole)
    assert max(int(e["encoder_segment_ids"].max()) for e in packed) > 1

    def pieces(examples: list[dict[str, Any]]) -> list[tuple[int, ...]]:
        found = []
        for example in examples:
            tokens = example["decoder_target_tokens"]
            segments = example.get("decoder_segment_ids", (tokens != 0).astype(int))
            found += [
                tuple(tokens[segments == n].tolist()) for n in range(1, int(segments.max()) + 1)
            ]
        return sorted(found)

    assert len(pieces(packed)) == len(whole)


@pytest.mark.slow
def test_judged_by_seqios_evaluator(folder: Path, places: None) -> None:
    """A model that repeats the targets agrees with them."""
    tasks.use(str(folder / "examples_seq2seq"))
    evaluator = seqio.Evaluator(
        "qac_seq2seq",
        feature_converter=seqio.EncDecFeatureConverter(pack=False),
        eval_split="train",
        sequence_length={"inputs": 20, "targets": 9},
    )

    def repeats(dataset: Any, *_: Any, **__: Any) -> Any:
        return [(n, e["decoder_target_tokens"]) for n, e in dataset.as_numpy_iterator()]

    metrics, _ = evaluator.evaluate(compute_metrics=True, step=0, predict_fn=repeats, score_fn=None)
    found = metrics.result()["qac_seq2seq"]
    assert found["exact_match"] == found["f1"] == 1.0


def limits(kind: str) -> dict[str, int]:
    settings = {**KINDS[kind].defaults, **SETTINGS.get(kind, {})}
    names = KINDS[kind].features(settings)
    return {name: length for name, length in LENGTHS.items() if name in names}


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


def assert_first_same(loader: Loader, dataset: Any) -> None:
    rows = itertools.islice(example_rows(loader), FIRST)
    found = itertools.islice(dataset.as_numpy_iterator(), FIRST)
    for row, example in itertools.zip_longest(rows, found):
        assert_same(row, example)


def assert_same(row: dict[str, np.ndarray] | None, example: dict[str, np.ndarray] | None) -> None:
    assert row is not None and example is not None
    assert set(row) == set(example)
    for name, value in row.items():
        np.testing.assert_array_equal(value, example[name], err_msg=name)
