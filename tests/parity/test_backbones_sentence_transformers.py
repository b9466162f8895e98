"""Dual and cross-encoders of every family with tokenizers of their own, from text to numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import toy_configs
import toy_tokenizers
from toy_tokenizers import TEXTS

from qac_jax.hub import backbones, huggingface
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import XlmRobertaConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig


CONFIGS: dict[str, BackboneConfig] = {
    **toy_configs.masking(32),
    "xlmr": XlmRobertaConfig(**toy_configs.SIZES, max_positions=34, type_vocab_size=1),
}


def random_variables(module: nn.Module) -> dict[str, Any]:
    """Parameters of any size but 0, biases too, so that none can be lost unseen."""
    shapes = backbones.new_parameters(module, abstract=True)
    rng = np.random.default_rng(0)

    def drawn(path: Any, x: Any) -> np.ndarray:
        noise = rng.normal(0, 0.4, x.shape).astype(np.float32)
        return noise + 1 if path[-1].key == "scale" else noise

    return {"params": jax.tree_util.tree_map_with_path(drawn, shapes)}


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_of_texts(name: str, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    tokenizer = toy_tokenizers.of(name, tmp_path / "tokenizer")
    module = DualEncoder(DualEncoderConfig(CONFIGS[name], pooling="mean", normalize=True))
    variables = random_variables(module)
    folder = huggingface.save(
        tmp_path / "model", module, variables, tokenizer=tokenizer, max_length=24
    )
    ours = Encoder.load(folder).encode(TEXTS)
    theirs = st.SentenceTransformer(os.fspath(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert np.abs(ours[0] - ours[1]).max() > 0.01


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_of_pairs(name: str, tmp_path: Path) -> None:
    """With the special tokens of the family between the texts: two for RoBERTa."""
    st, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    tokenizer = toy_tokenizers.of(name, tmp_path / "tokenizer")
    module = CrossEncoder(CONFIGS[name].with_parts("pooler"))
    folder = huggingface.save(
        tmp_path / "model", module, random_variables(module), tokenizer=tokenizer
    )
    queries, passages = TEXTS, TEXTS[1:] + TEXTS[:1]
    ours = Reranker.load(folder, RerankerOptions(max_length=32)).score(queries, passages)
    peer = st.CrossEncoder(os.fspath(folder), device="cpu")
    pairs = list(zip(queries, passages, strict=True))
    theirs = peer.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert np.ptp(ours) > 1e-3
