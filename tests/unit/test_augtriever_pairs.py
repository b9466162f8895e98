"""The kind `augtriever`: candidates for the encoder to choose from, and shares of crops."""

from typing import Any

import numpy as np
import pytest

from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import UserError


CLS, SEP = 2, 3
FORM = Form((CLS,), (SEP,), (SEP,))


def record(words: int = 300) -> dict[str, Any]:
    """Word i has 1 + i % 3 tokens, all 10 i + something."""
    sizes = [1 + i % 3 for i in range(words)]
    ids = [10 * (i + 1) + place for i, size in enumerate(sizes) for place in range(size)]
    title = [np.array([20_000, 20_001], np.int32)]
    return {"text": np.array(ids, np.int32), "words": np.array(sizes), "title": title}


def examples(settings: dict[str, Any], count: int, words: int = 300) -> tuple[Any, list[Any]]:
    limits = {"passage": 600, "context": 600, **settings.pop("lengths", {})}
    recipe = settle("augtriever", FORM, lengths=limits, settings=settings)
    rng, source = ExampleRng(), record(words)
    return recipe, [recipe.example(source, rng.seek(0, 0, i)) for i in range(count)]


def test_candidates_are_runs_of_whole_words_within_bounds() -> None:
    settings = {"strategies": {"qext_self": 1.0}, "lengths": {"spans": 64}}
    recipe, found = examples(settings, 100)
    assert recipe.kind.needs(recipe.settings) == ("text", "words")
    counts = set()
    for example in found:
        assert example["extract"] == 1 and len(example["spans"]) == 16
        for span in example["spans"]:
            assert span[0] == CLS and span[-1] == SEP
            numbers = span[1:-1] // 10
            words = np.unique(numbers)
            counts.add(len(words))
            assert (np.diff(words) == 1).all()
            assert all((numbers == word).sum() == 1 + (word - 1) % 3 for word in words)
    assert counts == set(range(4, 17))


def test_a_batch_with_and_without_candidates() -> None:
    settings = {"strategies": {"qext_self": 0.5, "title": 0.5}, "spans": 3, "span_words": [2, 5]}
    recipe, found = examples(settings, 200)
    extract = np.array([example["extract"] for example in found])
    assert 70 < extract.sum() < 130
    for example, extracts in zip(found, extract, strict=True):
        if not extracts:
            assert example["context"].tolist() == [CLS, 20_000, 20_001, SEP]
            assert [span.tolist() for span in example["spans"]] == [[CLS, SEP]] * 3
    batch = recipe.batch(found[:8])
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == recipe.spec(8)
    assert batch["spans"].shape == (8, 3, 32) and batch["extract"].tolist() == extract[:8].tolist()


def test_a_share_of_all_examples_is_crops() -> None:
    for share in (0.0, 0.5, 1.0):
        _, found = examples({"strategies": {"title": 1.0}, "random_crop_share": share}, 400)
        crops = np.mean([example["context"][1] < 20_000 for example in found])
        assert abs(crops - share) < 0.08


def test_what_cannot_be_drawn_is_refused() -> None:
    for settings, message in (
        ({"random_crop_share": 1.5}, "random_crop_share=1.5"),
        ({"spans": 0}, "spans=0"),
        ({"span_words": (8, 4)}, "8, 4"),
    ):
        with pytest.raises(UserError, match=message):
            settle("augtriever", FORM, settings={"strategies": {"qext_self": 1.0}, **settings})


def test_epochs_take_turns_with_draws_of_spans() -> None:
    spans = [np.array([20_000 + i], np.int32) for i in range(3)]
    source = {**record(), "qext_plm": spans}
    limits = {"passage": 600, "context": 600}
    recipe = settle("augtriever", FORM, lengths=limits, settings={"strategies": {"qext_plm": 1.0}})
    rng = ExampleRng()
    found = [recipe.example(source, rng.seek(0, epoch, 5))["context"][1] for epoch in range(5)]
    assert found == [20_000, 20_001, 20_002, 20_000, 20_001]
