"""Golden case 06: PAIR's two losses in every reading of their denominators, and gradients."""

import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.objectives import pair


precision = golden.precision
OUTPUTS = ("LQ", "LP", "L", "LQ_per_query", "LP_per_query")


@golden.each_case("06_")
def test_losses_and_gradients(case: Path, precision: str) -> None:
    meta, arrays = golden.load(case)
    assert set(meta["variants"]) == set(pair.DENOMINATORS)
    variants = list(golden.names(arrays, suffix="__LQ"))
    assert len(variants) >= len(pair.DENOMINATORS)
    alpha = float(arrays["alpha"])

    @jax.jit  # one program for all variants: compiling is what takes time here
    def everything(given: Any) -> Any:
        return {v: _of_variant(v, given, arrays, alpha) for v in variants}

    given = tuple(jnp.asarray(arrays[name], precision) for name in ("q", "pos", "neg"))
    for variant, (found, gradients) in jax.device_get(everything(given)).items():
        for name in OUTPUTS:
            expected = np.asarray(arrays[f"{variant}__{name}"], precision)
            golden.assert_loss(found[name], expected, precision, what=f"{variant} {name}")
        for name, value in zip(("q", "pos", "neg"), gradients, strict=True):
            expected = np.asarray(arrays[f"{variant}__grad_{name}"], precision)
            golden.assert_gradient(value, expected, precision, what=f"{variant} {name}")


def _of_variant(variant: str, given: Any, arrays: Any, alpha: float) -> Any:
    """(what the case stores of a variant, gradients of its loss)."""
    denominator = next(d for d in pair.DENOMINATORS if variant.startswith(d))
    count = arrays[f"{variant}__grad_neg"].shape[1]

    def total(queries: Any, positives: Any, hard: Any) -> Any:
        passages = jnp.concatenate([positives[:, None], hard], axis=1)
        by_query = pair.query_centric(queries, passages, denominator).loss
        by_passage = pair.passage_centric(queries, passages, denominator).loss
        loss = (1 - alpha) * by_query.mean() + alpha * by_passage.mean()
        values = (by_query.mean(), by_passage.mean(), loss, by_query, by_passage)
        return loss, dict(zip(OUTPUTS, values, strict=True))

    queries, positives, hard = given
    run = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)
    (_, found), gradients = run(queries, positives, hard[:, :count])
    return found, gradients


def test_vectors_of_zeros_count_the_candidates() -> None:
    size, width = 12, 8
    queries, passages = jnp.zeros((size, width)), jnp.zeros((size, 2, width))
    counts = {
        "paper_inbatch_and_hard": (2 * size, 1 + (size - 1) + size),
        "hard_from_all_only": (2 * size, 1 + size),
        "own_hard_only": (2, 2),
        "official_code": (2 * size, 2 * size),  # ln(2 W B), both
    }
    assert set(counts) == set(pair.DENOMINATORS)
    for denominator, found in _losses(queries, passages).items():
        for loss, candidates in zip(found, counts[denominator], strict=True):
            np.testing.assert_allclose(loss, np.log(candidates), rtol=1e-6)


def _vectors(queries: int, passages: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = ((queries, 4), (queries, passages, 4))
    first, second = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return first, second


def _losses(queries: Any, passages: Any, numbers: Any = None, **options: Any) -> Any:
    """Of both directions, by the denominator."""

    @jax.jit
    def both(queries: Any, passages: Any, numbers: Any) -> Any:
        return {
            d: [
                loss(queries, passages, d, numbers=numbers, **options).loss
                for loss in (pair.query_centric, pair.passage_centric)
            ]
            for d in pair.DENOMINATORS
        }

    return jax.device_get(both(queries, passages, numbers))


def test_groups_see_only_themselves_and_rows_change_nothing() -> None:
    queries, passages = _vectors(8, 3)
    whole, grouped = _losses(queries, passages), _losses(queries, passages, group=4)
    first = _losses(queries[:4], passages[:4])
    in_rows = _losses(queries, passages, rows=2)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), in_rows, whole)
    for denominator in pair.DENOMINATORS:
        for which in (0, 1):
            together = grouped[denominator][which]
            np.testing.assert_allclose(together[:4], first[denominator][which], rtol=1e-5)
            apart = np.abs(whole[denominator][which] - together).max()
            assert (apart > 1e-3) == (denominator != "own_hard_only")


def test_a_temperature_divides_all_scores() -> None:
    queries, passages = _vectors(6, 2)
    divided = _losses(queries, passages, temperature=0.25)
    # Scores are products of two vectors: twice the length of each is four times the score.
    longer = _losses(2 * queries, 2 * passages)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), divided, longer)


def test_copies_of_a_positive_are_as_if_they_were_not_there() -> None:
    queries, passages = _vectors(6, 2)
    numbers = np.arange(12).reshape(6, 2)
    passages[4, 0], numbers[4, 0] = passages[1, 0], numbers[1, 0]  # one passage answers two
    passages[5, 1], numbers[5, 1] = passages[1, 0], numbers[1, 0]  # and is a third one's negative

    masked = _losses(queries, passages, numbers)
    plain = _losses(queries, passages)
    scores = {"q": queries @ passages.reshape(12, 4).T, "p": passages[1, 0] @ queries.T}
    seen = [i for i in range(12) if i not in (8, 11)]  # what query 1 sees: all but the two copies
    expected = np.log(np.exp(scores["q"][1][seen]).sum()) - scores["q"][1][2]
    for name in ("paper_inbatch_and_hard", "hard_from_all_only", "official_code"):
        np.testing.assert_allclose(masked[name][0][1], expected, rtol=1e-5)
        assert plain[name][0][1] > masked[name][0][1] + 1e-3
    # The passage's own query stands against all but its other query and its copies.
    to_passages = passages[1, 0] @ passages[:, 1].T
    rivals = [scores["p"][j] for j in (0, 1, 2, 3, 5)] + [to_passages[j] for j in range(5)]
    expected = np.log(np.exp(rivals).sum()) - scores["p"][1]
    np.testing.assert_allclose(masked["official_code"][1][1], expected, rtol=1e-5)
    for name in pair.DENOMINATORS:
        assert (masked[name][1] <= plain[name][1] + 1e-6).all()
