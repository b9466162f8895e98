"""Whole-word masking: the rule by hand, by enumeration, and what must never happen."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.objectives import masking
from qac_jax.text import tokenizers


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += ["a", "b", "c", "d", "e", "f", "##1", "##2", "##3", "##4"]
VOCABULARY = masking.Vocabulary(np.array([piece.startswith("##") for piece in PIECES]))
KEYS = jax.random.split(jax.random.key(0), 4096)


def ids(text: str) -> list[int]:
    return [PIECES.index(piece) for piece in text.split()]


@functools.cache
def select(rate: float, variant: str) -> Callable[..., jax.Array]:
    rule = masking.Masking(rate, variant)
    return jax.jit(lambda i, n, k: rule.select(i, n, k, VOCABULARY))


def draws(text: str, rate: float, variant: str = "condenser") -> np.ndarray:
    """Selected tokens of [CLS] text [SEP] over many keys, bool [draws, tokens]."""
    row = [VOCABULARY.cls, *ids(text), VOCABULARY.sep]
    rows = np.full((len(KEYS), 10), VOCABULARY.pad, np.int32)
    rows[:, : len(row)] = row
    selected = select(rate, variant)(rows, np.full(len(KEYS), len(row), np.int32), KEYS)
    return np.asarray(selected)[:, 1 : len(row) - 1]


def test_budgets_round_half_to_even_as_python_does() -> None:
    assert masking.Masking(0.15).budgets(30)[[0, 1, 3, 10, 30]].tolist() == [1, 1, 1, 2, 4]
    assert masking.Masking(0.45).budgets(10)[10] == 4
    assert masking.Masking(0.15).budgets(10_000)[-1] == 512
    assert masking.Masking(0.15).max_predictions(128) == 19


def test_words_are_visited_in_random_order_and_those_that_do_not_fit_are_skipped() -> None:
    # Sizes 1, 2, 3, 1 with budget 3: every permutation, by the sequential rule.
    text, sizes, budget = "a b ##1 c ##1 ##2 d", (1, 2, 3, 1), 3
    expected: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(4)):
        room, taken = budget, []
        for word in order:
            if sizes[word] <= room:
                room -= sizes[word]
                taken.append(word)
        outcome = tuple(sorted(taken))
        expected[outcome] = expected.get(outcome, 0) + 1 / 24
    selected = draws(text, 0.45)
    starts = np.array([0, 1, 3, 6])
    seen = [tuple(np.flatnonzero(row).tolist()) for row in selected[:, starts]]
    assert set(seen) == set(expected)
    for outcome, share in expected.items():
        error = 4.5 * np.sqrt(share * (1 - share) / len(KEYS))
        assert abs(seen.count(outcome) / len(KEYS) - share) < error, outcome


def test_the_scan_equals_the_sequential_rule() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 6, (200, 40)).astype(np.int32)
    budgets = rng.integers(0, 20, 200).astype(np.int32)
    taken = np.asarray(jax.jit(jax.vmap(masking._take_what_fits))(sizes, budgets))
    for row, budget, got in zip(sizes, budgets, taken, strict=True):
        for size, flag in zip(row, got, strict=True):
            assert flag == (0 < size <= budget)
            budget -= size * flag


def test_a_word_larger_than_the_budget_is_never_masked() -> None:
    assert not draws("a ##1 ##2 ##3 ##4", 0.15).any()
    beside = draws("a ##1 ##2 b", 0.5)
    assert beside[:, 3].all() and not beside[:, :3].any()


def test_a_row_that_starts_with_a_continuation_opens_a_word_there() -> None:
    selected = draws("##1 ##2 a b", 0.5)
    assert (selected[:, 0] == selected[:, 1]).all() and selected[:, 0].any()
    assert selected.sum(1).max() == 2


def test_unknown_pieces_are_read_as_each_variant_reads_them() -> None:
    text = "a [UNK] ##1 b"
    condenser = draws(text, 0.5)
    assert not condenser[:, 1].any()
    assert (condenser[:, 0] == condenser[:, 2]).all() and condenser[:, 0].any()
    cotmae = draws(text, 0.5, "cotmae_qc")
    assert (cotmae[:, 1] == cotmae[:, 2]).all() and cotmae[:, 1].any()


def test_an_unknown_piece_uses_budget_but_is_not_predicted() -> None:
    row = jnp.array([[VOCABULARY.cls, *ids("[UNK]"), VOCABULARY.sep]], jnp.int32)
    rule = masking.Masking(0.5, "cotmae_qc")
    length = jnp.array([3], jnp.int32)
    assert np.asarray(rule.select(row, length, KEYS[:1], VOCABULARY)).sum() == 1
    masked = jax.jit(lambda i, n, k: rule(i, n, k, VOCABULARY))(row, length, KEYS[:1])
    assert (masked.ids == row).all() and not masked.weights.any()


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    rows = rng.integers(5, len(PIECES), (64, 24)).astype(np.int32)
    lengths = rng.integers(2, 25, 64).astype(np.int32)
    lengths[:2] = 2, 24
    rows[:, 0] = VOCABULARY.cls
    rows[np.arange(64), lengths - 1] = VOCABULARY.sep
    rows[np.arange(24) >= lengths[:, None]] = VOCABULARY.pad
    rows[5, 4] = VOCABULARY.sep
    return rows, lengths


@pytest.mark.parametrize("variant", ["condenser", "cotmae_qc"])
def test_predictions_are_listed_first_and_name_the_original_tokens(batch, variant) -> None:
    rows, lengths = batch
    rule = masking.Masking(0.3, variant)
    mask = jax.jit(lambda i, n, k: rule(i, n, k, VOCABULARY))
    masked = mask(rows, lengths, KEYS[: len(rows)])
    after, positions, labels, weights = map(np.asarray, masked)
    assert positions.shape == labels.shape == weights.shape == (64, rule.max_predictions(24))
    for i in range(len(rows)):
        count = int(weights[i].sum())
        assert (weights[i] == (np.arange(len(weights[i])) < count)).all()
        places = positions[i, :count]
        assert (np.diff(places) > 0).all()
        assert (labels[i, :count] == rows[i, places]).all()
        assert not np.isin(rows[i, places], VOCABULARY.special).any()
        untouched = np.setdiff1d(np.arange(24), places)
        assert (after[i, untouched] == rows[i, untouched]).all()
        tokens = int((~np.isin(rows[i, : lengths[i]], (VOCABULARY.cls, VOCABULARY.sep))).sum())
        assert count <= rule.budgets(24)[tokens]
    assert weights.sum() > 64


def test_a_row_depends_on_its_key_and_on_no_other_row(batch) -> None:
    rows, lengths = batch
    mask = jax.jit(lambda i, n, k: masking.Masking(0.3)(i, n, k, VOCABULARY))
    order = np.random.default_rng(2).permutation(64)
    first = mask(rows, lengths, KEYS[:64])
    moved = mask(rows[order], lengths[order], KEYS[:64][order])
    for one, other in zip(first, moved, strict=True):
        assert (np.asarray(one)[order] == np.asarray(other)).all()
    second = mask(rows, lengths, KEYS[64:128])
    differ = (np.asarray(first.ids) != np.asarray(second.ids)).any(1)
    assert differ[lengths > 12].mean() > 0.9


def test_errors_say_what_to_do() -> None:
    with pytest.raises(UserError, match="rate = 15; expected more than 0 and less than 1"):
        masking.Masking(15)
    with pytest.raises(UserError, match="did you mean 'condenser'"):
        masking.Masking(0.15, "condensor")


def test_the_vocabulary_of_a_tokenizer() -> None:
    tokenizer = tokenizers.Tokenizer(
        tokenizers.wordpiece({piece: i for i, piece in enumerate(PIECES)}),
        {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
        "test",
    )
    found = masking.Vocabulary.from_tokenizer(tokenizer)
    assert (found.continuation == VOCABULARY.continuation).all()
    assert found.special == VOCABULARY.special and found.size == len(PIECES)
