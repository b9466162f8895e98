"""Sentences into spans: the two published grouping rules and the contexts of a span.

Pure functions on token counts; texts, tokenisers and seeds live in `passages.py`. What is
random is an argument: an iterator of target lengths, or a `random.Random`.

The two rules, from the released codes of CoT-MAE and QAC and of Condenser:

- *overshooting* (query-as-context): add the sentence, then close the span if it is longer
  than the target, so that most spans are longer than the target by part of a sentence;
- *within* (Condenser): close the span first if the sentence would not fit. Only a sentence
  that is longer than the target by itself makes a span that is longer.
"""

import random
from collections.abc import Iterator, Sequence


# Splitters of sentences by name (sentences.py); a file of learned parameters is another.
SPLITTERS = ("auto", "punkt_tab", "shipped")


def target_lengths(limit: int, short_probability: float, rng: random.Random) -> Iterator[int]:
    """Target lengths without end: `limit`, or now and then uniform in [2, limit]."""
    while True:
        if short_probability > 0 and rng.random() < short_probability:
            yield rng.randint(min(2, limit), limit)
        else:
            yield limit


def spans_overshooting(counts: Sequence[int], targets: Iterator[int]) -> list[list[int]]:
    """Sentence indices by span; a span closes once it is longer than its target."""
    spans: list[list[int]] = []
    current: list[int] = []
    length, target = 0, next(targets)
    for index, count in enumerate(counts):
        if count == 0:
            continue
        current.append(index)
        length += count
        if length > target:
            spans.append(current)
            current, length, target = [], 0, next(targets)
    if current:
        spans.append(current)
    return spans


def spans_within(counts: Sequence[int], targets: Iterator[int]) -> list[list[int]]:
    """Sentence indices by span; a span closes before it would be longer than its target."""
    spans: list[list[int]] = []
    current: list[int] = []
    length, target = 0, next(targets)
    for index, count in enumerate(counts):
        # An empty sentence never joins a span, but it does close an over-long one, as in
        # Condenser's code: the sequence of targets stays the same.
        if current and length + count > target:
            spans.append(current)
            current, length, target = [], 0, next(targets)
        if count:
            current.append(index)
            length += count
    if current:
        spans.append(current)
    return spans


def random_sampled(spans: int, index: int, rng: random.Random, window: int = 100) -> int:
    """Another span of the document, uniform among those at most `window` away."""
    low, high = max(0, index - window), min(spans, index + window + 1)
    others = [other for other in range(low, high) if other != index]
    return rng.choice(others) if others else index


def nearby(spans: int, index: int, rng: random.Random) -> int:
    """The previous or the next span of the document."""
    others = [other for other in (index - 1, index + 1) if 0 <= other < spans]
    return rng.choice(others) if others else index


def overlap(
    spans: Sequence[Sequence[int]],
    index: int,
    counts: Sequence[int],
    limit: int,
    rng: random.Random,
) -> list[int]:
    """Sentences that share some with span `index` and go on after it.

    The last k sentences of the span and what follows, until `limit` tokens are reached (the
    sentence that reaches it included). The last span is mirrored: its first k sentences and
    what precedes them. k is uniform in [1, half the sentences of the span].
    """
    span = list(spans[index])
    half = len(span) // 2
    k = rng.randint(1, half) if half >= 2 else 1
    last = index == len(spans) - 1
    shared = span[:k] if last else span[-k:]
    left = limit - sum(counts[sentence] for sentence in shared)
    neighbours = spans[:index] if last else spans[index + 1 :]
    following = [sentence for other in neighbours for sentence in other]
    added: list[int] = []
    for sentence in reversed(following) if last else following:
        if left <= 0:
            break
        added.append(sentence)
        left -= counts[sentence]
    return [*reversed(added), *shared] if last else [*shared, *added]
