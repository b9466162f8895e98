"""Grouping sentences: limits, order, and what happens to short rests."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from qac_jax.text import spans


counts_of = st.lists(st.integers(0, 40), max_size=40)
seeds = st.integers(0, 2**32)


def targets(limit: int, seed: int):
    return spans.target_lengths(limit, 0.5, random.Random(seed))


@given(counts_of, st.integers(2, 60), seeds)
def test_every_sentence_goes_into_one_span_in_order(counts, limit, seed):
    filled = [i for i, count in enumerate(counts) if count]
    for rule in (spans.spans_within, spans.spans_overshooting):
        found = rule(counts, targets(limit, seed))
        assert list(itertools.chain(*found)) == filled
        assert all(found)


@given(counts_of, st.integers(2, 60), seeds)
def test_within_is_over_the_limit_only_for_one_long_sentence(counts, limit, seed):
    for span in spans.spans_within(counts, targets(limit, seed)):
        assert sum(counts[s] for s in span) <= limit or len(span) == 1


@given(counts_of, st.integers(2, 60))
def test_overshooting_passes_the_limit_with_its_last_sentence_only(counts, limit):
    found = spans.spans_overshooting(counts, itertools.repeat(limit))
    for span in found[:-1]:
        lengths = [counts[s] for s in span]
        assert sum(lengths) > limit >= sum(lengths[:-1])


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(2, 40), st.integers(1, 40), seeds)
def test_joining_keeps_order_and_limit(counts, limit, least, seed):
    least = min(least, limit)
    before = spans.spans_within(counts, targets(limit, seed))
    after = spans.joined(before, counts, least, limit)
    assert list(itertools.chain(*after)) == list(range(len(counts)))

    def sizes(groups):
        return [sum(counts[s] for s in group) for group in groups]

    too_long = max([limit, *counts])
    assert all(size <= too_long for size in sizes(after))
    small_before = sum(size < least for size in sizes(before))
    assert sum(size < least for size in sizes(after)) <= small_before


def test_joining_by_hand():
    counts = [10, 10, 10, 3]
    assert spans.joined([[0, 1, 2], [3]], counts, 8, 40) == [[0, 1, 2, 3]]
    assert spans.joined([[0, 1, 2], [3]], counts, 8, 30) == [[0, 1], [2, 3]]
    assert spans.joined([[0, 1, 2], [3]], counts, 3, 30) == [[0, 1, 2], [3]]
    assert spans.joined([[3]], counts, 8, 30) == [[3]]


@given(counts_of, st.integers(2, 60), seeds)
def test_contexts_stay_in_the_document(counts, limit, seed):
    found = spans.spans_overshooting(counts, targets(limit, seed))
    rng = random.Random(seed)
    n = len(found)
    for i, span in enumerate(found):
        other, near = spans.random_sampled(n, i, rng), spans.nearby(n, i, rng)
        if n > 1:
            assert other != i and 0 <= other < n
            assert abs(near - i) == 1 and 0 <= near < n
        else:
            assert other == near == i
        shared = spans.overlap(found, i, counts, limit, rng)
        assert shared == sorted(shared)
        assert set(shared) & set(span)


def test_the_window_bounds_random_sampling():
    rng = random.Random(0)
    drawn = {spans.random_sampled(500, 250, rng, window=2) for _ in range(200)}
    assert drawn == {248, 249, 251, 252}
