"""What the loader promises, for any sizes: restored = uninterrupted, hosts together = one host,
documents kept apart, epochs complete."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_examples import MemoryExamples

from qac_jax.data.loader import Loader
from qac_jax.data.randomness import permute
from qac_jax.data.sampler import Separate


SCHEMA = {"passage": "uint16", "random": "uint16", "random_lengths": "int32"}
FORM = {"before": [1], "between": [2], "after": [2], "pad": 0}
LENGTHS = {"passage": 6, "context": 6}


def source(count: int, documents: np.ndarray | None = None) -> MemoryExamples:
    records = [
        {"passage": np.arange(i, i + 12), "random": [np.array([i, k]) for k in range(5)]}
        for i in range(10, 10 + count)
    ]
    info = {"task": "passage_passage", "schema": SCHEMA, "form": FORM}
    return MemoryExamples(records, {**info, "settings": {"sorts": ["random"]}}, documents)


def rows(batch: dict[str, np.ndarray]) -> list[bytes]:
    together = np.concatenate([batch[name].reshape(len(batch["passage"]), -1) for name in batch], 1)
    return [row.tobytes() for row in together]


@st.composite
def orders(draw: Any) -> dict[str, Any]:
    """Any way of ordering any number of examples."""
    way = draw(st.sampled_from(["drop", "wrap", "separate", "plain"]))
    count = draw(st.integers(16, 90))
    options: dict[str, Any] = {"seed": draw(st.integers(0, 2**31)), "batch_size": 8}
    if way == "separate":
        sizes = draw(st.lists(st.integers(1, 9), min_size=12, max_size=30))
        documents = np.repeat(np.arange(len(sizes)), sizes)
        parts: Any = source(len(documents), documents)
        options["separate_documents"] = True
    else:
        parts = source(count)
        options["remainder"] = "drop" if way == "plain" else way
        options["shuffle"] = way != "plain"
    return {"source": parts, "lengths": LENGTHS, "prefetch": 0, **options}


@pytest.mark.slow
@given(orders(), st.integers(0, 40), st.sampled_from([0, 2]))
@settings(max_examples=40, deadline=None)
def test_restored_goes_on_like_uninterrupted(
    order: dict[str, Any], step: int, prefetch: int
) -> None:
    uninterrupted = Loader(**order)
    for _ in range(step):
        next(uninterrupted)
    state = uninterrupted.state()
    with Loader(**{**order, "prefetch": prefetch}) as restored:
        restored.restore(state)
        for _ in range(3):
            assert rows(next(restored)) == rows(next(uninterrupted))
        assert restored.state() == uninterrupted.state()


@pytest.mark.slow
@given(hosts=st.sampled_from([2, 4, 8]), order=orders(), start=st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_hosts_together_see_what_one_host_sees(
    hosts: int, order: dict[str, Any], start: int
) -> None:
    single = Loader(**order)
    several = [Loader(**order, host=(number, hosts)) for number in range(hosts)]
    for loader in (single, *several):
        loader.restore({**loader.state(), "step": start})
    for _ in range(3):
        together = [row for loader in several for row in rows(next(loader))]
        assert together == rows(next(single))
    assert all(loader.identity == single.identity for loader in several)
    assert several[0].spec["passage"][0] == (8 // hosts, 6)


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 25), min_size=8, max_size=40),
    st.integers(1, 8),
    st.integers(0, 1000),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_documents_never_meet_and_epochs_are_as_complete_as_can_be(
    sizes: list[int], batch_size: int, seed: int, scattered: bool
) -> None:
    documents = np.repeat(np.arange(len(sizes)), sizes)
    if scattered:
        documents = np.random.default_rng(seed).permutation(documents)
    plan = Separate(documents, batch_size, seed)
    heaps = plan.batches_per_epoch
    for epoch in range(2):
        seen: list[int] = []
        for step in range(epoch * heaps, (epoch + 1) * heaps):
            slots = plan.at(step)
            assert len(set(documents[slots.example].tolist())) == batch_size
            assert (slots.epoch == epoch).all()
            seen += slots.example.tolist()
        assert len(set(seen)) == len(seen) == heaps * batch_size
    # One batch more would need more than the documents can give.
    assert sum(min(size, heaps + 1) for size in sizes) < (heaps + 1) * batch_size


def test_separated_epochs_are_drawn_anew() -> None:
    documents = np.repeat(np.arange(20), 30)
    plan = Separate(documents, 8, seed=3)
    firsts = [plan.at(step).example for step in (0, 1, plan.batches_per_epoch)]
    assert len({tuple(f.tolist()) for f in firsts}) == 3
    again = Separate(documents, 8, seed=3).at(plan.batches_per_epoch).example
    assert (again == firsts[2]).all()
    assert (Separate(documents, 8, seed=4).at(0).example != firsts[0]).any()
    seen = np.concatenate([plan.at(s).example for s in range(3 * plan.batches_per_epoch)])
    assert len(np.unique(seen)) == len(documents)  # 600 = 75 batches of 8: nothing is left out


def test_permutations_look_random() -> None:
    """Every number is equally often in every place (chi-square over 4,000 permutations)."""
    n, trials = 11, 1500
    counts = np.zeros((n, n))
    for epoch in range(trials):
        counts[np.arange(n), permute(np.arange(n), n, 0, epoch)] += 1
    expected = trials / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


@given(st.integers(1, 5000), st.integers(-5, 2**63), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_permutations_are_permutations(n: int, seed: int, epoch: int) -> None:
    found = permute(np.arange(n), n, seed, epoch)
    assert (np.sort(found) == np.arange(n)).all()
    some = np.arange(0, n, 7)
    assert (permute(some, n, seed, epoch) == found[some]).all()
    sizes = np.full(len(some), n)
    assert (permute(some, sizes, seed, np.full(len(some), epoch)) == found[some]).all()


# Reading examples needs neither TensorFlow nor TFDS.
SCRIPT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None                      # importing it raises ImportError
from qac_jax.data.loader import Loader
with Loader({examples!r}, batch_size=16, epochs=1) as loader:
    rows = sum(len(batch["passage"]) for batch in loader)
assert rows == loader.examples_per_epoch > 0, rows
heavy = ("tensorflow", "tensorflow_datasets", "seqio", "tensorflow_text")
found = [name for name in heavy if sys.modules.get(name)]
assert not found, found
print("rows", rows)
"""


@pytest.mark.slow
def test_iterating_imports_no_tensorflow(tmp_path: Path) -> None:
    examples = str(toy_examples.tokenized(tmp_path, "passage_query").path)
    optional = ["gin", "transformers", "nltk", "scann", "tensorflow"]
    for blocked in ([], optional):
        script = SCRIPT.format(blocked=blocked, examples=examples)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("rows")
