"""Golden case 12: the law of whole-word masking, and 80/10/10 replacement."""

import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qac_jax.objectives import masking


DRAWS = 20_000
SIGMAS = 4.5
SPECIAL = ("pad", "unk", "cls", "sep", "mask")


def settings() -> list[Any]:
    """(case, collator, rate), as the results of each case list them."""
    found = []
    for case in golden.cases("12_"):
        results = golden.load(case)[0]["results"]
        pairs = sorted({(r["collator"], r["p"]) for r in results})
        for pair in pairs:
            marks = [] if pair in (pairs[0], pairs[-1]) else [pytest.mark.slow]
            found.append(pytest.param(case, *pair, marks=marks))
    return found or [pytest.param(golden.root() / "12_-is-missing", "", 0.5)]


@functools.cache
def _lists(case: Path) -> tuple[masking.Vocabulary, np.ndarray, np.ndarray]:
    """The vocabulary that the lists imply, and them as rows [CLS] … [SEP]."""
    lists = golden.load(case)[0]["lists"]
    known = {t: i for every in lists for t, i in zip(every["tokens"], every["ids"], strict=True)}
    unused = (i for i in range(10**6) if i not in set(known.values()))
    special: dict[str, int] = {}
    for name in SPECIAL:
        index = known.get(f"[{name.upper()}]")
        special[name] = next(unused) if index is None else index
    continuation = np.zeros(max(*known.values(), *special.values()) + 1, bool)
    for tokens in lists:
        for index, flag in zip(tokens["ids"], tokens["continuation"], strict=True):
            continuation[index] = flag
    vocabulary = masking.Vocabulary(continuation, **special)
    lengths = np.array([len(tokens["ids"]) + 2 for tokens in lists], np.int32)
    rows = np.full((len(lists), lengths.max() + 1), vocabulary.pad, np.int32)
    for row, tokens, length in zip(rows, lists, lengths, strict=True):
        row[:length] = [vocabulary.cls, *tokens["ids"], vocabulary.sep]
    return vocabulary, rows, lengths


@functools.cache
def _draw(case: Path, collator: str, rate: float) -> np.ndarray:
    """Selected tokens, bool [lists, draws, length], without the frame of [CLS] and [SEP]."""
    vocabulary, rows, lengths = _lists(case)
    count = len(rows)
    draw = jax.jit(
        lambda ids, n, keys: masking.Masking(rate, collator).select(ids, n, keys, vocabulary)
    )
    keys = jax.random.split(jax.random.key(20), count * DRAWS)
    selected = draw(jnp.repeat(rows, DRAWS, 0), jnp.repeat(lengths, DRAWS), keys)
    selected = np.asarray(selected).reshape(count, DRAWS, -1)
    assert not selected[:, :, 0].any()
    for index, length in enumerate(lengths):
        assert not selected[index, :, length - 1 :].any()
    return selected[:, :, 1:]


def _fits(observed: np.ndarray, expected: np.ndarray) -> bool:
    """Chi-square; rare cells are counted together, as the test's approximation needs."""
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 1e-9:
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) == 1:
        return bool(observed[0] == DRAWS)
    return stats.chisquare(observed, expected * (DRAWS / expected.sum())).pvalue > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("case", "collator", "rate"), settings())
def test_the_law_of_whole_word_masking(case: Path, collator: str, rate: float) -> None:
    meta, arrays = golden.load(case)
    results = [r for r in meta["results"] if (r["collator"], r["p"]) == (collator, rate)]
    assert results
    for result in results:
        selected = _draw(case, collator, rate)[result["list"]][:, : result["n_tokens"]]
        counts = selected.sum(1)
        assert counts.max() <= result["budget"]

        marginal = arrays[f"{result['key']}__exact_marginal"]
        error = SIGMAS * np.sqrt(marginal * (1 - marginal) / DRAWS)
        off = np.abs(selected.mean(0) - marginal)
        assert (off <= error).all(), (result["key"], off, error)

        for word in result["words"]:
            assert (selected[:, word].all(1) == selected[:, word].any(1)).all(), word
        outside = np.setdiff1d(np.arange(result["n_tokens"]), np.concatenate(result["words"]))
        assert not selected[:, outside].any()

        law = arrays[f"{result['key']}__exact_count_law"]
        histogram = np.bincount(counts, minlength=len(law))
        assert len(histogram) == len(law) and (histogram[law == 0] == 0).all()
        assert _fits(histogram, DRAWS * law), (result["key"], histogram, law)


@pytest.mark.parametrize("case", golden.parameters("12_"))
def test_replacement_is_80_10_10(case: Path) -> None:
    expected = golden.load(case)[0]["replacement"]
    size = expected["vocab_size"]
    vocabulary = masking.Vocabulary(np.zeros(size, bool))
    tokens = jnp.tile(jnp.arange(5, 5 + 1000, dtype=jnp.int32), (1000, 1))
    keys = jax.random.split(jax.random.key(3), len(tokens))
    _, chance, other = masking.random_bits(keys, tokens.shape[1])
    replaced = jax.jit(lambda t, c, o: masking.replaced(t, c, o, vocabulary))
    after = np.asarray(replaced(tokens, chance, other))
    before = np.asarray(tokens)

    masked, kept = after == vocabulary.mask, after == before
    observed = [masked.sum(), kept.sum(), (~masked & ~kept).sum()]
    shares = np.array([expected["expected"][name] for name in ("mask", "keep", "random")])
    fit = stats.chisquare(observed, shares / shares.sum() * before.size)
    assert fit.pvalue > 1e-4, (observed, shares)

    others = after[~masked & ~kept]
    bins = np.bincount(others * 20 // size, minlength=20)
    widths = np.bincount(np.arange(size) * 20 // size, minlength=20)
    assert stats.chisquare(bins, widths / size * len(others)).pvalue > 1e-4
    assert np.isin(others, vocabulary.special).any(), "special ids are drawn too"
