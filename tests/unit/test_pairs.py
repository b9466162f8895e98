"""Pair functions: what an example is made of, the papers' invariants, positives and negatives."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qac_jax.data.featurizer import settle
from qac_jax.data.form import Form, pair_lengths
from qac_jax.data.randomness import ExampleRng
from qac_jax.errors import DataError, UserError
from qac_jax.text import crops


CLS, SEP = 901, 902
FORM = Form((CLS,), (SEP,), (SEP,))
CUT = Form((CLS,), (SEP,), (SEP,), crop="right")
LENGTHS = {"passage": 12, "context": 6}


def ids(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint16)


RECORD: dict[str, Any] = {
    "passage": ids(0, 30),
    "contexts": [ids(100, 3), ids(200, 3), ids(300, 9)],
    "random": [ids(400, 3)],
    "nearby": [ids(500, 3), ids(510, 3)],
    "overlap": [ids(600, 3)],
}


def inside(example_ids: np.ndarray) -> np.ndarray:
    assert example_ids[0] == CLS and example_ids[-1] == SEP
    assert example_ids.dtype == np.int32
    return example_ids[1:-1]


def drawn(kind: str, record: dict[str, Any], count: int = 300, **settings: Any) -> list[Any]:
    recipe = settle(kind, FORM, lengths=LENGTHS, settings=settings)
    rng = ExampleRng()
    return [recipe.example(record, rng.seek(5, 0, i)) for i in range(count)]


def starts(examples: list[Any], name: str = "context") -> set[int]:
    return {int(inside(example[name])[0]) for example in examples}


def test_passage_query_draws_every_query_and_crops_at_both_ends() -> None:
    examples = drawn("passage_query", RECORD)
    assert {start // 100 for start in starts(examples)} == {1, 2, 3}
    assert starts(examples, "passage") == set(range(30 - 10 + 1))  # the excess is split at random
    assert all(len(e["passage"]) == 12 and len(e["context"]) <= 6 for e in examples)
    assert starts(drawn("passage_query", RECORD, queries=2)) == {100, 200}


def test_passage_passage_draws_every_sort() -> None:
    assert starts(drawn("passage_passage", RECORD)) == {400, 500, 510, 600}
    assert starts(drawn("passage_passage", RECORD, sorts=("nearby",))) == {500, 510}
    (alone,) = drawn("passage_passage", {**RECORD, "random": []}, 1, sorts=("random",))
    assert set(inside(alone["context"])) <= set(range(30))  # the passage itself


def test_mixed_keeps_its_probabilities() -> None:
    examples = drawn("mixed", RECORD, 4000, probabilities={"query": 3.0, "overlap": 1.0})
    share = np.mean([inside(e["context"])[0] >= 600 for e in examples])
    assert abs(share - 0.25) < 0.03
    without = {**RECORD, "overlap": []}
    found = starts(drawn("mixed", without, probabilities={"query": 1.0, "overlap": 1.0}))
    assert {start // 100 for start in found} == {1, 2, 3}


def test_two_spans_are_always_different_and_all_pairs_occur() -> None:
    record = {"spans": [ids(100 * i, 3) for i in range(4)]}
    found = {
        (int(inside(e["passage"])[0]) // 100, int(inside(e["context"])[0]) // 100)
        for e in drawn("two_spans", record, 500)
    }
    assert found == {(a, b) for a in range(4) for b in range(4) if a != b}


def test_random_crop_lengths() -> None:
    for words, low, high in [(256, 12, 128), (10, 4, 5), (4, 4, 4), (1, 1, 1)]:
        rng = np.random.default_rng(0)
        found = [crops.crop(words, rng) for _ in range(4000)]
        sizes = {stop - start for start, stop in found}
        assert sizes == set(range(low, high + 1))
        assert min(start for start, _ in found) == 0 and max(stop for _, stop in found) == words


def word_record(words: int) -> dict[str, Any]:
    """Word w has 1 + w % 3 pieces: 10 w, 10 w + 1…"""
    pieces = [1 + w % 3 for w in range(words)]
    text = [10 * w + p for w in range(words) for p in range(pieces[w])]
    return {
        "text": np.array(text, np.uint16),
        "words": np.array(pieces, np.int32),
        "title": [ids(20000, 2)],
        "anchor": [ids(30000 + 10 * i, 2) for i in range(4)],
        "topic": [],
    }


def test_augtriever_documents_are_cropped_and_thinned_by_words() -> None:
    kept, total, starts = 0, 0, []
    for example in examples({"strategies": {"random_crop": 1.0}}, 300)[1]:
        for name, whole in (("passage", False), ("context", True)):
            words = inside(example[name]) // 10
            numbers, pieces = np.unique(words, return_counts=True)
            assert (pieces == 1 + numbers % 3).all() and (np.diff(words) >= 0).all(), "torn words"
            if whole:
                assert 12 <= len(numbers) <= 128
                assert (np.diff(numbers) == 1).all()  # a query is never thinned
                starts.append(numbers[0])
            else:
                kept += len(numbers)
                total += numbers[-1] - numbers[0] + 1
    assert abs(kept / total - 0.9) < 0.01
    assert max(starts) > 256  # the context is a random window of 256 words


def test_augtriever_strategies_and_fallbacks() -> None:
    record = word_record(40)

    def queries(strategy: str, **more: Any) -> list[np.ndarray]:
        settings = {"strategies": {strategy: 1.0}, "separator": [7], **more}
        return [inside(example["context"]) for example in examples(settings, 200, record)[1]]

    assert all(q.tolist() == [20000, 20001] for q in queries("title"))
    counts = set()
    for query in queries("anchor", max_phrases=3):
        parts = np.split(query, np.flatnonzero(query == 7))
        numbers = [int(part[part != 7][0]) for part in parts]
        assert len(set(numbers)) == len(numbers)
        counts.add(len(numbers))
    assert counts == {1, 2, 3}
    # A strategy without text falls back to a crop; phrases fall back to the title.
    assert all((q < 400).all() for q in queries("topic"))
    record["anchor"] = []
    assert all(q.tolist() == [20000, 20001] for q in queries("anchor"))


def test_augtriever_whole_documents_are_for_pseudo_queries_alone() -> None:
    record = word_record(40)
    lengths = {}
    for name in ("title", "qext_self", "random_crop", "topic"):  # which has no topic
        settings = {"strategies": {name: 1.0}, "whole_documents": True}
        words = [np.unique(inside(e["passage"]) // 10) for e in examples(settings, 50, record)[1]]
        lengths[name] = {len(of) for of in words}
    assert lengths["title"] == lengths["qext_self"] == {40}
    assert max(lengths["random_crop"]) <= 20 >= max(lengths["topic"])


def examples(settings: dict[str, Any], count: int, record: Any = None) -> tuple[Any, list[Any]]:
    limits = {"passage": 999, "context": 999, **settings.pop("lengths", {})}
    recipe = settle("augtriever", FORM, lengths=limits, settings=settings)
    rng, source = ExampleRng(), record or word_record(300)
    return recipe, [recipe.example(source, rng.seek(0, 0, i)) for i in range(count)]


def test_candidates_are_runs_of_whole_words_within_bounds() -> None:
    settings = {"strategies": {"qext_self": 1.0}, "lengths": {"spans": 64}}
    recipe, found = examples(settings, 100)
    assert recipe.kind.needs(recipe.settings) == ("text", "words")
    counts = set()
    for example in found:
        assert example["extract"] == 1 and len(example["spans"]) == 16
        for span in example["spans"]:
            words, pieces = np.unique(inside(span) // 10, return_counts=True)
            counts.add(len(words))
            assert (np.diff(words) == 1).all() and (pieces == 1 + words % 3).all()
    assert counts == set(range(4, 17))


def test_a_batch_with_and_without_candidates() -> None:
    settings = {"strategies": {"qext_self": 0.5, "title": 0.5}, "spans": 3, "span_words": [2, 5]}
    recipe, found = examples(settings, 200)
    extract = [example["extract"] for example in found]
    assert 70 < sum(extract) < 130
    assert all(inside(e["context"])[0] == 20_000 for e in found if not e["extract"])
    batch = recipe.batch(found[:8])
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == recipe.spec(8)
    assert batch["spans"].shape == (8, 3, 32) and batch["extract"].tolist() == extract[:8]


def test_a_share_of_all_examples_is_crops() -> None:
    _, found = examples({"strategies": {"title": 1.0}, "random_crop_share": 0.5}, 400)
    assert abs(np.mean([example["context"][1] < 20_000 for example in found]) - 0.5) < 0.08


def test_epochs_take_turns_with_draws_of_spans() -> None:
    source = {**word_record(300), "qext_plm": [ids(20_000 + i, 1) for i in range(3)]}
    recipe = settle("augtriever", FORM, settings={"strategies": {"qext_plm": 1.0}})
    rng = ExampleRng()
    found = [recipe.example(source, rng.seek(0, epoch, 5))["context"][1] for epoch in range(5)]
    assert found == [20_000, 20_001, 20_002, 20_000, 20_001]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_pair_truncation_pops_from_the_longer(a: int, b: int, room: int) -> None:
    x, y = a, b
    while x + y > room:  # RocketQA's rule, word for word
        if x > y:
            x -= 1
        else:
            y -= 1
    assert pair_lengths(a, b, room, "pop_longer") == (x, y)


def test_names_are_checked() -> None:
    more: Any
    for kind, more, message in (
        ("passage_queries", {}, "did you mean 'passage_query'"),
        ("passage_query", {"settings": {"querys": 2}}, "setting 'querys'"),
        ("mixed", {}, "needs the setting 'probabilities'"),
    ):
        with pytest.raises(UserError, match=message):
            settle(kind, FORM, **more)


# Fine-tuning: positives, windows of negatives, titles, teachers.


def ranked(positives: int, negatives: int) -> dict[str, Any]:
    return {
        "query": np.array([1, 2], np.uint16),
        "positives": [np.array([100 + i], np.uint16) for i in range(positives)],
        "negatives": [np.array([200 + i], np.uint16) for i in range(negatives)],
        "positives_scores": np.arange(positives, dtype=np.float32),
        "negatives_scores": -np.arange(negatives, dtype=np.float32),
    }


def first_ids(found: dict[str, Any]) -> list[int]:
    return [int(p[1]) for p in found["passages"]]


def chosen(
    positives: int, negatives: int, epoch: int = 0, number: int = 7, n_passages: int = 16
) -> list[int]:
    recipe = settle("triples", CUT, settings={"n_passages": n_passages})
    return first_ids(recipe.example(ranked(positives, negatives), ExampleRng(42, epoch, number)))


def test_negative_windows_of_epochs_are_disjoint() -> None:
    """Epochs 0..k give disjoint slices where there are at least 15 (k + 1) negatives."""
    for epochs, available in ((3, 45), (2, 44), (4, 128)):
        found = [chosen(2, available, epoch) for epoch in range(epochs)]
        assert all(first < 200 <= min(rest) for first, *rest in found)
        seen = [number for _, *rest in found for number in rest]
        assert len(set(seen)) == len(seen) == 15 * epochs
    # Past the end the window wraps around: every negative is seen before one comes back twice.
    counts = Counter(number for epoch in range(3) for number in chosen(1, 20, epoch)[1:])
    assert set(counts) == set(range(200, 220))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_too_few_negatives_are_drawn_with_replacement() -> None:
    found = chosen(1, 3)
    assert len(found) == 16 and set(found[1:]) == {200, 201, 202}
    with pytest.raises(DataError, match="has no negatives but 15 are wanted"):
        chosen(1, 0)
    assert chosen(1, 0, n_passages=1) == [100]


def test_positives_rotate_with_the_epoch() -> None:
    found = [chosen(3, 0, epoch, number=6, n_passages=1)[0] for epoch in range(4)]
    assert found == [100 + (42 + 6 + epoch) % 3 for epoch in range(4)]


def test_teacher_scores_follow_their_passages() -> None:
    recipe = settle("triples", CUT, settings={"n_passages": 5, "teacher": True})
    for epoch in range(4):
        found = recipe.example(ranked(2, 9), ExampleRng(0, epoch, 3))
        numbers = first_ids(found)
        assert found["scores"].tolist() == [numbers[0] - 100, *(200.0 - n for n in numbers[1:])]
    batch = recipe.batch([found, found])
    assert batch["scores"].shape == (2, 5) and batch["scores"].dtype == np.float32


def test_titles_as_the_first_segment() -> None:
    made = ranked(1, 0)
    made["positives"] = [np.array([5, 6, 7, SEP, 11, 12, 13, 14], np.int32)]
    settings = {"n_passages": 1, "title_types": True}
    recipe = settle("triples", CUT, lengths={"passages": 8}, settings=settings)
    found = recipe.example(made, ExampleRng())
    assert found["passages"][0].tolist() == [CLS, 5, 6, 7, SEP, 11, 12, SEP]
    assert found["passages_types"][0].tolist() == [0] * 5 + [1] * 3
    batch = recipe.batch([found])
    assert batch["passages_types"].shape == batch["passages"].shape == (1, 1, 8)
    assert "passages_types_length" not in batch
