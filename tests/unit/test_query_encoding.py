"""Queries to vectors in few compiled shapes, without their padding."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from qac_jax.inference.encoder import Encoder
from qac_jax.models.backbone import Architecture
from qac_jax.models.bert import BertConfig, DistilBertConfig, MpnetConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.models.modernbert import ModernBertConfig
from qac_jax.models.t5 import T5EncoderConfig
from qac_jax.serving.batching import QueryEncoder, packed_shapes


SMALL = {"vocab_size": 40, "num_layers": 2, "num_heads": 2}
WIDE = {**SMALL, "hidden_size": 16, "intermediate_size": 24}
BACKBONES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (BertConfig, {**WIDE, "max_positions": 16}),
    "distilbert": (DistilBertConfig, {**WIDE, "max_positions": 16}),
    "mpnet": (MpnetConfig, {**WIDE, "max_positions": 16}),
    "modernbert": (ModernBertConfig, {**WIDE, "max_positions": 16, "pad_id": 0}),
    "t5": (T5EncoderConfig, {**WIDE, "head_size": 8}),
}


class Stub:
    """An encoder whose texts are their lengths and vectors their sums; it checks what fits."""

    def __init__(self, devices: int, limit: int = 64):
        self.runner = SimpleNamespace(mesh=SimpleNamespace(size=devices))
        self.limits, self.tokenizer = {"query": limit}, SimpleNamespace(pad_id=0)
        self.width, self.shapes = 1, list[tuple[int, ...]]()

    def tokenize(self, texts: list[str], side: str) -> list[list[int]]:
        return [[number % 7 + 1] * int(text) for number, text in enumerate(texts)]

    def encode_tokens(self, rows: list[list[int]], side: str) -> np.ndarray:
        return np.array([[sum(row)] for row in rows], np.float32)

    def apply(self, ids: np.ndarray, lengths: np.ndarray, side: str, room: int = 0) -> np.ndarray:
        assert not room or lengths.sum() <= room < ids.size
        self.shapes.append((*ids.shape, room))
        there = np.arange(ids.shape[1]) < lengths[:, None]
        return np.where(there, ids, 0).sum(1, keepdims=True).astype(np.float32)


def queries(stub: Stub, most: int) -> QueryEncoder:
    return QueryEncoder(cast(Encoder, stub), most)


@pytest.mark.parametrize(("devices", "most"), [(1, 1), (8, 6), (1, 32)])
def test_each_text_gets_its_vector_whatever_the_lengths(devices: int, most: int) -> None:
    rng = np.random.default_rng(most)
    for count in (0, 1, 3, 8, 15, 40):
        for longest in (6, 30, 64, 90):
            stub = Stub(devices, limit=longest)
            encoder = queries(stub, most)
            texts = [str(n) for n in rng.integers(3, longest + 1, count)]
            expected = stub.encode_tokens(stub.tokenize(texts, "query"), "query")
            np.testing.assert_array_equal(encoder.encode(texts, "query"), expected.reshape(-1, 1))
            assert {shape[:2] for shape in stub.shapes} <= {
                (shape.size, shape.length) for shape in encoder._shapes
            }


def test_padding_is_left_out() -> None:
    stub = Stub(1)
    encoder = queries(stub, 32)
    texts = ["12", "18", "25", "19", "14", "20", "17", "16"]  # 141 tokens
    encoder.encode(texts, "query")
    encoder._ready = list(encoder._shapes)
    encoder.encode(texts, "query")
    encoder.encode(["18"], "query")
    # Not all shapes are compiled at the start.
    assert stub.shapes == [(8, 32, 192), (8, 32, 144), (1, 24, 0)]
    assert len(packed_shapes(32, 512)) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_without_padding_vectors_are_the_padded_ones(name: str) -> None:
    """A short batch whose last rows are empty."""
    make, sizes = BACKBONES[name]
    backbone: Architecture = make(**sizes)
    pooling = "cls" if name in ("bert", "modernbert") else "mean"
    config = DualEncoderConfig(cast(Any, backbone), pooling=pooling, normalize=True)
    lengths = np.array([3, 8, 1, 5, 0, 0], np.int32)
    ids = np.random.default_rng(0).integers(5, 40, (6, 8), np.int32)
    ids = np.where(np.arange(8) < lengths[:, None], ids, 0)
    runtime = Runtime(scan=True)
    module = DualEncoder(config, runtime)
    rows = DualEncoder(config, dataclasses.replace(runtime, packed=((8, 24 / 48),)))
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, lengths)
    rng = np.random.default_rng(1)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        # Large matrices, so that attention differs from text to text.
        spread = 0.6 if leaf.size > 100 else 0.1
        values = rng.normal("scale" in jax.tree_util.keystr(path), spread, leaf.shape)
        return values.astype(np.float32)

    variables = jax.tree_util.tree_map_with_path(drawn, variables)
    expected, found = (
        np.asarray(jax.jit(each.apply)(variables, ids, lengths))[:4] for each in (module, rows)
    )
    assert np.ptp(expected, axis=0).max() > 0.05
    np.testing.assert_allclose(found, expected, atol=2e-6)
