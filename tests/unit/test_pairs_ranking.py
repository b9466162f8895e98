"""Fine-tuning examples: positives, windows of negatives, titles, teachers, cross-encoders."""

from typing import Any

import numpy as np
import pytest

from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import DataError, UserError


CLS, SEP = 901, 902
FORM = Form((CLS,), (SEP,), (SEP,), crop="right")


def record(positives: int, negatives: int) -> dict[str, Any]:
    return {
        "query": np.array([1, 2], np.uint16),
        "positives": [np.array([100 + i], np.uint16) for i in range(positives)],
        "negatives": [np.array([200 + i], np.uint16) for i in range(negatives)],
        "positives_scores": np.arange(positives, dtype=np.float32),
        "negatives_scores": -np.arange(negatives, dtype=np.float32),
    }


def passages(found: dict[str, Any]) -> list[int]:
    return [int(p[1]) for p in found["passages"]]


def test_negative_windows_of_epochs_are_disjoint() -> None:
    """Epochs 0..k give disjoint slices where there are at least 15 (k + 1) negatives."""
    recipe, rng = settle("triples", FORM, settings={"n_passages": 16}), ExampleRng()
    for epochs, available in ((3, 45), (2, 44), (4, 128)):
        seen: list[int] = []
        for epoch in range(epochs):
            found = passages(recipe.example(record(2, available), rng.seek(42, epoch, 7)))
            assert found[0] < 200 <= min(found[1:])
            seen += found[1:]
        assert len(set(seen)) == len(seen) == 15 * epochs
    # Past the end the window wraps around: every negative is seen before one comes back twice.
    found = [
        n
        for epoch in range(3)
        for n in passages(recipe.example(record(1, 20), rng.seek(42, epoch, 7)))[1:]
    ]
    assert set(found) == set(range(200, 220))
    counts = np.unique(found, return_counts=True)[1]
    assert counts.max() - counts.min() <= 1
    # Each example has an order of its own.
    recipe = settle("triples", FORM, settings={"n_passages": 9})
    orders = {tuple(passages(recipe.example(record(1, 8), rng.seek(0, 0, i)))) for i in range(9)}
    assert len(orders) > 6


def test_too_few_negatives_are_drawn_with_replacement() -> None:
    recipe, rng = settle("triples", FORM, settings={"n_passages": 16}), ExampleRng()
    found = passages(recipe.example(record(1, 3), rng.seek(0, 0, 0)))
    assert len(found) == 16 and set(found[1:]) == {200, 201, 202}
    with pytest.raises(DataError, match="has no negatives but 15 are wanted"):
        recipe.example(record(1, 0), rng)
    alone = settle("triples", FORM, settings={"n_passages": 1})
    assert passages(alone.example(record(1, 0), rng)) == [100]
    with pytest.raises(UserError, match="n_passages is 0"):
        settle("triples", FORM, settings={"n_passages": 0})


def test_positives_rotate_with_the_epoch() -> None:
    recipe, rng = settle("triples", FORM, settings={"n_passages": 1}), ExampleRng()
    found = [passages(recipe.example(record(3, 0), rng.seek(4, e, 6)))[0] for e in range(4)]
    assert found == [100 + (4 + 6 + e) % 3 for e in range(4)]


def test_teacher_scores_follow_their_passages() -> None:
    recipe = settle("triples", FORM, settings={"n_passages": 5, "teacher": True})
    for epoch in range(4):
        found = recipe.example(record(2, 9), ExampleRng(0, epoch, 3))
        numbers = passages(found)
        assert found["scores"].tolist() == [numbers[0] - 100, *(200.0 - n for n in numbers[1:])]
    batch = recipe.batch([found, found])
    assert batch["scores"].shape == (2, 5) and batch["scores"].dtype == np.float32


def test_titles_as_the_first_segment() -> None:
    made = record(1, 0)
    made["positives"] = [np.array([5, 6, 7, SEP, 11, 12, 13, 14], np.int32)]
    settings = {"n_passages": 1, "title_types": True}
    recipe = settle("triples", FORM, lengths={"passages": 8}, settings=settings)
    found = recipe.example(made, ExampleRng())
    assert found["passages"][0].tolist() == [CLS, 5, 6, 7, SEP, 11, 12, SEP]
    assert found["passages_types"][0].tolist() == [0] * 5 + [1] * 3
    batch = recipe.batch([found])
    assert batch["passages_types"].shape == batch["passages"].shape == (1, 1, 8)
    assert "passages_types_length" not in batch


def test_cross_encoder_pairs() -> None:
    made = {"query": np.array([1, 2, 3]), "passage": np.arange(10, 30), "label": np.array([1])}
    recipe = settle("cross_encoder", FORM, lengths={"pair": 10})
    found = recipe.example(made, ExampleRng())
    assert found["pair"].tolist() == [CLS, 1, 2, 3, SEP, 10, 11, 12, 13, SEP]
    assert found["pair_types"].tolist() == [0] * 5 + [1] * 5
    batch = recipe.batch([found])
    assert batch["label"].tolist() == [1] and batch["label"].dtype == np.int32
    assert set(batch) == {"pair", "pair_length", "pair_types", "label"}
    with pytest.raises(UserError, match="did you mean 'only_second'"):
        settle("cross_encoder", FORM, settings={"truncation": "only_secon"})
