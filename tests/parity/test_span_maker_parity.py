"""Both span makers and the contexts against the official functions (golden case 14)."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import golden_cases as golden
import pytest

from qac_jax.text import spans


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


@pytest.mark.parametrize("case", golden.parameters("14_"))
def test_spans_and_contexts(case: Path) -> None:
    documents = golden.load(case)[0]["documents"]
    assert documents
    for document in documents:
        counts = document["sentence_token_counts"]
        for run in document["runs"]:
            for make, expected, kind in (
                (spans.spans_overshooting, run["qc"], "span"),
                (spans.spans_within, run["condenser"], "block"),
            ):
                targets = Targets(run["targets"])
                found = make(counts, targets)
                assert found == expected[f"{kind}s"]
                assert targets.drawn == expected["targets_consumed"]
                tokens = [sum(counts[s] for s in span) for span in found]
                assert tokens == expected[f"{kind}_token_counts"]
            check_contexts(counts, run["qc"], run["maxlen"])


def check_contexts(counts: list[int], expected: dict[str, Any], longest: int) -> None:
    found = expected["spans"]
    script = Script(expected["context_draws_in_order"])
    rng = cast(random.Random, script)
    n = len(found)
    sampled = [spans.random_sampled(n, i, rng) for i in range(n)]
    near = [spans.nearby(n, i, rng) for i in range(n)]
    over = [spans.overlap(found, i, counts, longest, rng) for i in range(n)]
    assert sampled == expected["random_sampled_span_index"]
    assert near == expected["nearby_span_index"]
    assert over == expected["overlap_spans"]
    assert script.finished(), "the reference drew more often"


def test_short_targets_follow_the_stated_law():
    n = 20_000
    drawn = list(itertools.islice(spans.target_lengths(144, 0.15, random.Random(0)), n))
    short = [target for target in drawn if target != 144]
    # 144 itself is one of the 143 short lengths.
    share = 0.15 * 142 / 143
    assert abs(len(short) / n - share) < 4.5 * (share * (1 - share) / n) ** 0.5
    assert min(short) == 2 and max(short) == 143
    assert set(itertools.islice(spans.target_lengths(144, 0.0, random.Random(0)), 99)) == {144}
