"""Dual and cross-encoders of every family with tokenizers of their own, from text to numbers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import tokenizers as hf
import toy_configs

from qac_jax.hub import backbones, huggingface
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.roberta import XlmRobertaConfig
from qac_jax.text import backends, tokenizers


TEXTS = ["the tide mill ground barley", "near the sea", "the miller's mills", "x"]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CONFIGS: dict[str, BackboneConfig] = {
    **toy_configs.masking(32),
    "xlmr": XlmRobertaConfig(**toy_configs.SIZES, max_positions=34, type_vocab_size=1),
}
CONFIGS["modernbert"] = dataclasses.replace(CONFIGS["modernbert"], pad_id=3)


def bpe(specials: list[str]) -> hf.Tokenizer:
    """A byte-level BPE without a template."""
    backend = hf.Tokenizer(hf.models.BPE(unk_token=specials[3]))
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(TEXTS * 10, trainer)
    return backend


def byte_level(folder: Path) -> Path:
    """RoBERTa's kind of tokenizer, as older folders have it: pieces and their merges."""
    folder.mkdir()
    bpe(SPECIALS).model.save(os.fspath(folder))
    content = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


def byte_level_of_bert(folder: Path) -> Path:
    """ModernBERT's kind of tokenizer: RoBERTa's pieces, BERT's special tokens."""
    roles = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
    backend = bpe([roles[role] for role in ("cls", "sep", "mask", "pad", "unk")])
    backend.model.unk_token = "[UNK]"
    backend.post_processor = hf.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    return stored(folder, backend, roles)


def wordpiece_of_mpnet(folder: Path) -> Path:
    """MPNet's kind of tokenizer: BERT's pieces, RoBERTa's special tokens."""
    words = sorted({word for text in TEXTS for word in text.replace("'", " ").split()})
    folder.mkdir()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "'", *words, "<mask>"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    content = {"tokenizer_class": "MPNetTokenizer", "model_max_length": 32, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


def unigram(folder: Path) -> Path:
    """XLM-R's kind of tokenizer."""
    backend = hf.Tokenizer(hf.models.Unigram())
    backend.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    backend.decoder = hf.decoders.Metaspace()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS * 10, trainer)
    backend.post_processor = hf.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    roles = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "sep": "</s>", "eos": "</s>"}
    return stored(folder, backend, roles | {"unk": "<unk>", "mask": "<mask>"})


def stored(folder: Path, backend: hf.Tokenizer, roles: Mapping[str, str]) -> Path:
    """A tokenizer's folder as transformers writes it."""
    folder.mkdir()
    backend.save(os.fspath(folder / "tokenizer.json"))
    config: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def wordpiece(folder: Path) -> Path:
    words = sorted({word for text in TEXTS for word in text.replace("'", " ").split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "'", *words]
    backend = backends.wordpiece({piece: number for number, piece in enumerate(pieces)})
    specials = backends.special_tokens_of(pieces, {})
    tokenizers.Tokenizer(backend, specials, "toy").save(folder)
    return folder


def random_variables(module: nn.Module) -> dict[str, Any]:
    """Parameters of any size but 0, biases too, so that none can be lost unseen."""
    shapes = backbones.new_parameters(module, abstract=True)
    rng = np.random.default_rng(0)

    def drawn(path: Any, x: Any) -> np.ndarray:
        noise = rng.normal(0, 0.4, x.shape).astype(np.float32)
        return noise + 1 if path[-1].key == "scale" else noise

    return {"params": jax.tree_util.tree_map_with_path(drawn, shapes)}


TOKENIZERS = {
    "roberta": byte_level,
    "xlmr": unigram,
    "modernbert": byte_level_of_bert,
    "mpnet": wordpiece_of_mpnet,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_of_texts(name: str, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    tokenizer = TOKENIZERS.get(name, wordpiece)(tmp_path / "tokenizer")
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
    tokenizer = TOKENIZERS.get(name, wordpiece)(tmp_path / "tokenizer")
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
