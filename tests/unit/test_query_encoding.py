"""Queries to vectors in few compiled shapes, with little padding."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from qac_jax.inference.encoder import Encoder
from qac_jax.inference.runner import Runner
from qac_jax.serving.batching import QueryEncoder


class Stub:
    """An encoder whose texts are their lengths and vectors their sums."""

    def __init__(self, copies: int, limit: int = 64):
        rows = lambda *given: Runner.rows(cast(Any, self.runner), *given)  # noqa: E731
        run = lambda *given: Runner.run(cast(Any, self.runner), *given)  # noqa: E731
        self.runner = SimpleNamespace(copies=copies, rows=rows, run=run)
        self.limits, self.tokenizer = {"query": limit}, SimpleNamespace(pad_id=0)
        self.width, self.shapes = 1, list[tuple[int, ...]]()

    def tokenize(self, texts: list[str], side: str) -> list[list[int]]:
        return [[number % 7 + 1] * int(text) for number, text in enumerate(texts)]

    def apply(self, ids: np.ndarray, lengths: np.ndarray, side: str) -> np.ndarray:
        self.shapes.append(ids.shape)
        there = np.arange(ids.shape[1]) < lengths[:, None]
        return np.where(there, ids, 0).sum(1, keepdims=True).astype(np.float32)


@pytest.mark.parametrize(("copies", "most"), [(1, 1), (8, 6), (1, 32)])
def test_each_text_gets_its_vector_whatever_the_lengths(copies: int, most: int) -> None:
    rng = np.random.default_rng(most)
    for count in (0, 1, 3, 8, 15, 40):
        for longest in (6, 30, 64, 90):
            stub = Stub(copies, limit=longest)
            texts = [str(n) for n in rng.integers(3, longest + 1, count)]
            expected = [[sum(row)] for row in stub.tokenize(texts, "query")]
            found = QueryEncoder(cast(Encoder, stub), most).encode(texts, "query")
            np.testing.assert_array_equal(found, np.reshape(expected, (-1, 1)))


def test_what_is_compiled_beforehand_is_what_short_queries_take() -> None:
    for copies in (1, 8):
        stub = Stub(copies)
        encoder = QueryEncoder(cast(Encoder, stub), 32)
        encoder.warm()
        known = set(stub.shapes)
        assert len(known) == len(stub.shapes) <= 24
        for count in (1, 5, 32):
            encoder.encode([str(3 + 29 * n // count) for n in range(count)], "query")
        assert set(stub.shapes) == known
    stub = Stub(1)
    QueryEncoder(cast(Encoder, stub), 32).encode(["18"] * 5, "query")
    assert stub.shapes == [(4, 20), (1, 20)]
