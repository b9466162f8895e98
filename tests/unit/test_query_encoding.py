"""Queries to vectors in few compiled shapes, with little padding; encoders without any."""

import functools
import itertools
from types import SimpleNamespace
from typing import Any, cast

import flax.linen as nn
import jax
import numpy as np
import pytest
import toy_configs

from qac_jax.inference.encoder import Encoder
from qac_jax.inference.runner import Runner
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.serving.batching import QueryEncoder


class Stub:
    """An encoder whose texts are their lengths and vectors their sums."""

    def __init__(self, copies: int, limit: int = 64):
        self.runner: Any = SimpleNamespace(copies=copies)
        for name in ("rows", "run"):
            setattr(self.runner, name, functools.partial(getattr(Runner, name), self.runner))
        self.limits, self.tokenizer = {"query": limit}, SimpleNamespace(pad_id=0)
        self.width, self.shapes = 1, list[tuple[int, ...]]()

    def tokenize(self, texts: list[str], side: str) -> list[list[int]]:
        return [[number % 7 + 1] * int(text) for number, text in enumerate(texts)]

    def apply(self, ids: np.ndarray, lengths: np.ndarray, side: str) -> np.ndarray:
        self.shapes.append(ids.shape)
        there = np.arange(ids.shape[1]) < lengths[:, None]
        return np.where(there, ids, 0).sum(1, keepdims=True).astype(np.float32)


def test_each_text_gets_its_vector_whatever_the_lengths() -> None:
    rng = np.random.default_rng(0)
    for (copies, most), count, longest in itertools.product(
        [(1, 1), (8, 6), (1, 32)], (0, 1, 8, 15, 40), (6, 64, 90)
    ):
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


@pytest.mark.slow
@pytest.mark.parametrize("name", toy_configs.every(16))
def test_without_padding_vectors_are_the_padded_ones(name: str) -> None:
    """A short batch whose last rows are empty."""
    pooling = "cls" if name in ("roberta", "modernbert") else "mean"
    config = DualEncoderConfig(toy_configs.every(16)[name], pooling=pooling, normalize=True)
    lengths = np.array([3, 8, 1, 5, 0, 0], np.int32)
    ids = np.random.default_rng(0).integers(5, 40, (6, 8), np.int32)
    ids = np.where(np.arange(8) < lengths[:, None], ids, 0)
    module = DualEncoder(config, Runtime(scan=True))
    rows = DualEncoder(config, Runtime(scan=True, packed=((8, 24 / 48),)))
    variables = nn.unbox(jax.jit(module.init)(jax.random.key(0), ids, lengths))
    # Large matrices, so that attention differs from text to text.
    variables = jax.tree.map(lambda x: 12 * x if x.ndim > 1 else x, variables)
    expected, found = (
        np.asarray(jax.jit(each.apply)(variables, ids, lengths))[:4] for each in (module, rows)
    )
    assert np.ptp(expected, axis=0).max() > 0.05
    np.testing.assert_allclose(found, expected, atol=2e-6)
