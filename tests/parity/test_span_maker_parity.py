"""Both span makers and the contexts against the official functions (golden case 14)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest
from conftest import GOLDEN

from qac_jax.text import spans


def golden_runs() -> list:
    """Every (document, run) of every case of this kind in the golden folder."""
    found = []
    for case in sorted(GOLDEN.glob("14_span_maker*/**/case.json")):
        documents = json.loads(case.read_text())["documents"]
        for d, document in enumerate(documents):
            for r, run in enumerate(document["runs"]):
                name = f"{case.parent.relative_to(GOLDEN)}-doc{d}-run{r}"
                found.append(pytest.param(document, run, id=name))
    return found


RUNS = golden_runs()


class Targets(Iterator[int]):
    """The scripted targets; counts how many were drawn."""

    def __init__(self, targets: list[int]):
        self.targets, self.drawn = targets, 0

    def __next__(self) -> int:
        self.drawn += 1
        return self.targets[self.drawn - 1]


class Script:
    """A random generator that replays draws and checks what they are drawn from."""

    def __init__(self, draws: list[list]):
        self.draws = iter(draws)

    def choice(self, seq, /) -> int:
        kind, candidates, result = next(self.draws)
        assert (kind, candidates) == ("sample", list(seq))
        return result

    def randint(self, a: int, b: int, /) -> int:
        kind, low, high, result = next(self.draws)
        assert (kind, low, high) == ("randint", a, b)
        return result

    def finished(self) -> bool:
        return next(self.draws, None) is None


def test_the_case_exists():
    assert RUNS, f"no case 14 in {GOLDEN}"


@pytest.mark.parametrize(("document", "run"), RUNS)
def test_query_as_context_spans(document, run):
    counts, expected = document["sentence_token_counts"], run["qc"]
    targets = Targets(run["targets"])
    found = spans.spans_overshooting(counts, targets)
    assert found == expected["spans"]
    assert targets.drawn == expected["targets_consumed"]
    assert [sum(counts[s] for s in span) for span in found] == expected["span_token_counts"]


@pytest.mark.parametrize(("document", "run"), RUNS)
def test_contexts(document, run):
    counts, expected = document["sentence_token_counts"], run["qc"]
    found, rng = expected["spans"], Script(expected["context_draws_in_order"])
    n = len(found)
    sampled = [spans.random_sampled(n, i, rng) for i in range(n)]
    near = [spans.nearby(n, i, rng) for i in range(n)]
    over = [spans.overlap(found, i, counts, run["maxlen"], rng) for i in range(n)]
    assert sampled == expected["random_sampled_span_index"]
    assert near == expected["nearby_span_index"]
    assert over == expected["overlap_spans"]
    assert rng.finished(), "the reference drew more often"


@pytest.mark.parametrize(("document", "run"), RUNS)
def test_condenser_blocks(document, run):
    counts, expected = document["sentence_token_counts"], run["condenser"]
    targets = Targets(run["targets"])
    found = spans.spans_within(counts, targets)
    assert found == expected["blocks"]
    assert targets.drawn == expected["targets_consumed"]
    assert [sum(counts[s] for s in span) for span in found] == expected["block_token_counts"]


def test_short_targets_follow_the_stated_law():
    n = 20_000
    drawn = list(itertools.islice(spans.target_lengths(144, 0.15, random.Random(0)), n))
    short = [target for target in drawn if target != 144]
    # 144 itself is one of the 143 short lengths.
    share = 0.15 * 142 / 143
    assert abs(len(short) / n - share) < 4.5 * (share * (1 - share) / n) ** 0.5
    assert min(short) == 2 and max(short) == 143
    assert set(itertools.islice(spans.target_lengths(144, 0.0, random.Random(0)), 99)) == {144}
