"""Paired tests and Holm's correction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.evaluation.significance import (
    compare,
    holm,
    paired_t_test,
    randomization_test,
)


def test_the_t_test_is_scipys():
    from scipy import stats

    rng = np.random.default_rng(0)
    for n in (2, 3, 10, 500):
        first, second = rng.random(n), rng.random(n) + 0.05
        expected = stats.ttest_rel(second, first).pvalue
        assert paired_t_test(second - first) == pytest.approx(expected, rel=1e-9)


def test_the_t_test_without_spread():
    assert paired_t_test([0.0, 0.0, 0.0]) == 1.0
    assert paired_t_test([0.1, 0.1, 0.1]) == 0.0
    assert paired_t_test([0.3]) == 1.0


def brute_force(differences: list[float]) -> float:
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(s >= observed - 1e-9 for s in sums) / len(sums)


def test_few_queries_are_counted_exactly():
    rng = np.random.default_rng(1)
    for n in range(1, 9):
        differences = rng.normal(0.3, 1, n).round(1)
        assert randomization_test(differences, 10) == pytest.approx(brute_force(list(differences)))
    # 0.1 + 0.2 - 0.3 is not quite 0: sums that differ by rounding alone are the same.
    assert randomization_test([0.1, 0.2, -0.3]) == 1.0
    assert randomization_test([0.0, 0.0]) == 1.0
    assert randomization_test([1.0] * 5) == pytest.approx(2 / 32)


def test_the_exact_test_is_scipys():
    from scipy import stats

    rng = np.random.default_rng(6)
    for n in (2, 5, 11):
        differences = rng.normal(0.2, 1, n)
        expected = stats.permutation_test(
            (differences,),
            lambda values, axis: values.sum(axis),
            permutation_type="samples",
            n_resamples=np.inf,
        )
        assert randomization_test(differences) == pytest.approx(expected.pvalue)


def test_draws_come_close_to_the_exact_value():
    rng = np.random.default_rng(2)
    differences = rng.normal(0.4, 1, 17)
    exact = brute_force(list(differences))
    drawn = randomization_test(differences, 50_000, seed=3)
    assert abs(drawn - exact) < 5 * np.sqrt(exact * (1 - exact) / 50_000)
    assert drawn == randomization_test(differences, 50_000, seed=3), "a seed decides the draws"
    assert randomization_test(np.ones(60), 999) == 1 / 1000, "never 0"


def test_both_tests_agree_on_many_queries():
    rng = np.random.default_rng(4)
    for shift in (0.0, 0.02, 0.05):
        differences = rng.normal(shift, 0.5, 900)
        t, r = paired_t_test(differences), randomization_test(differences, 20_000)
        assert abs(t - r) < 0.02


def test_no_difference_is_found_significant_as_often_as_it_should():
    rng = np.random.default_rng(5)
    low = sum(randomization_test(rng.normal(0, 1, 30), 400, i) < 0.05 for i in range(400))
    assert 5 <= low <= 36, "400 draws at 5 %: 20, within 3.7 standard deviations"


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_runs_are_compared_pair_by_pair():
    queries = [f"q{i}" for i in range(6)]
    runs = {
        "a": dict(zip(queries, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], strict=True)),
        "b": dict(zip(queries, [0.2, 0.3, 0.4, 0.3, 0.5, 0.9], strict=True)),
        "c": dict(zip(reversed(queries), [1.0] * 6, strict=True)),
    }
    found = compare(runs, "ndcg@10", permutations=10)
    assert [(c.first, c.second) for c in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    one = found[0]
    assert (one.wins, one.losses, one.ties, one.queries) == (4, 1, 1, 6)
    assert one.difference == pytest.approx(0.5 / 6)
    assert one.randomization == pytest.approx(brute_force([0.1, 0.1, 0.1, -0.1, 0.3]))
    assert [c.t_test_holm for c in found] == holm([c.t_test for c in found])
    assert [c.randomization_holm for c in found] == holm([c.randomization for c in found])
    assert found[1].t_test_holm > found[1].t_test
    assert compare({"a": runs["a"]}, "map") == []


def test_runs_of_other_queries_are_refused():
    with pytest.raises(UserError, match="scored on different queries"):
        compare({"a": {"q": 1.0}, "b": {"p": 1.0}}, "map")
    with pytest.raises(UserError, match="expected 1 or more"):
        compare({"a": {"q": 1.0}, "b": {"q": 0.0}}, "map", permutations=0)
