"""Poolings, prompts, modules and every family of encoders are those of sentence-transformers."""

import json
import os
from pathlib import Path
from typing import Any

import hf_encoders as hf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_configs
import toy_tokenizers

from qac_jax.hub import huggingface, sentence_transformers
from qac_jax.hub.names import tokenizer_of
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Reranker
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models import heads
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import BertConfig, XlmRobertaConfig
from qac_jax.models.encoders import SIDES, CrossEncoder, DualEncoder, DualEncoderConfig


TEXTS = ["w9 w7 w5", "w8", "w11 w12 w30 w7 w9"]
CONFIG = BertConfig(40, 8, 1, 2, 12, 16, pooler=True)


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("name", heads.POOLINGS)
def test_poolings(name: str, start: int) -> None:
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    hidden = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    lengths = np.asarray([6, 4, 3], np.int32)
    mask = np.arange(6) < lengths[:, None]
    features = {
        "token_embeddings": torch.tensor(hidden),
        "attention_mask": torch.tensor(mask).long(),
        "prompt_length": start,
    }
    theirs = modules.Pooling(4, name, include_prompt=not start)(features)["sentence_embedding"]
    ours = jax.jit(heads.pool, static_argnums=(0, 3))(
        name, jnp.asarray(hidden), jnp.asarray(lengths), start
    )
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2e-6)
    alone = heads.pool(name, jnp.asarray(hidden[2:, :3]), None, start)
    np.testing.assert_allclose(alone[0], ours[2], rtol=0, atol=2e-6)


def dual(tied: bool = True, **fields: Any) -> tuple[DualEncoder, dict[str, Any]]:
    """A dual encoder whose parameters, biases too, are not 0."""
    module = DualEncoder(DualEncoderConfig(CONFIG, tied=tied, **fields))
    return module, hf.random_variables(module)


def both_sides(model: Any, texts: list[str]) -> dict[str, np.ndarray]:
    return {"query": model.encode_query(texts), "passage": model.encode_document(texts)}


LEFT_OUT = {"query_prompt": "w6 w7 ", "include_prompt": False}
TOWERS = {"tied": False, "pooling": "weightedmean", "normalize": True, "query_prompt": "w6 "}
SAME = {"query_prompt": "w9 ", "passage_prompt": "w9 ", "other_prompts": (("sts", "w9 "),)}
FOLDERS: dict[str, dict[str, Any]] = {
    "prompts": {"query_prompt": "w6 w7 ", "other_prompts": (("sts", "w9 "),)},
    "default-prompt": {**SAME, "default_prompt_name": "sts", "pooling": "max"},
    "prompt-left-out": {**LEFT_OUT, "pooling": "mean", "passage_prompt": "w8 "},
    "prompt-left-out-first": LEFT_OUT,
    "dense": {"pooling": "lasttoken", "projection": 5, "projection_activation": "gelu"},
    "towers": {**TOWERS, "projection": 5, "projection_bias": False},
    "plain-towers": {"tied": False, "pooling": "mean_sqrt_len_tokens", "passage_prompt": "w6 "},
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    """Text to vectors as `encode_query` and `encode_document`; what they save, we load."""
    st = pytest.importorskip("sentence_transformers")
    module, variables = dual(**FOLDERS[name])
    tokenizer = toy_tokenizers.numbered_words(tmp_path / "tokenizer")
    folder = huggingface.save(
        tmp_path / "model", module, variables, tokenizer=tokenizer, max_length=9
    )
    theirs = st.SentenceTransformer(os.fspath(folder), device="cpu")
    expected = both_sides(theirs, TEXTS)
    assert theirs.similarity_fn_name == ("cosine" if module.config.normalize else "dot")
    ours = Encoder.load(folder)
    for side in SIDES:
        np.testing.assert_allclose(ours.encode(TEXTS, side), expected[side], rtol=0, atol=2e-5)
    if default := module.config.default_prompt_name:
        assert theirs.default_prompt_name == default
        np.testing.assert_allclose(theirs.encode(TEXTS), expected["passage"], rtol=0, atol=1e-6)
    assert (np.abs(expected["query"] - expected["passage"]).max() > 1e-3) == (
        not module.config.tied or module.config.query_prompt != module.config.passage_prompt
    )
    theirs.save(os.fspath(tmp_path / "theirs"))
    for place in (folder, tmp_path / "theirs"):
        again, loaded = huggingface.load(place)
        assert again == module
        jax.tree.map(np.testing.assert_array_equal, variables, loaded)
        assert sentence_transformers.max_length(place) == 9
        assert tokenizer_of(place).encode_batch(TEXTS) == ours.tokenizer.encode_batch(TEXTS)


def test_default_prompt_of_both_sides(tmp_path: Path) -> None:
    """Where no prompt has the name of a side, both have the default one."""
    module, variables = dual()
    folder = huggingface.save(tmp_path / "model", module, variables)
    file = folder / sentence_transformers.SETTINGS
    stated = {"prompts": {"sts": "w9 "}, "default_prompt_name": "sts"}
    file.write_text(json.dumps(json.loads(file.read_text()) | stated))
    config = huggingface.load(folder)[0].config
    assert (config.query_prompt, config.passage_prompt) == ("w9 ", "w9 ")
    assert (config.other_prompts, config.default_prompt_name) == ((("sts", "w9 "),), "sts")


@pytest.mark.parametrize("kind", ["Router", "Asym"])
def test_routers_with_shared_modules(kind: str, tmp_path: Path) -> None:
    """An encoder of both sides before a router that has a Dense for each, and Normalize after."""
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    module, variables = dual()
    tokenizer = toy_tokenizers.numbered_words(tmp_path / "tokenizer")
    folder = huggingface.save(tmp_path / "inner", module, variables, tokenizer=tokenizer)
    parts = list(st.SentenceTransformer(os.fspath(folder), device="cpu"))
    routes = {name: [modules.Dense(8, 3, bias=False)] for name in ("query", "document")}
    theirs = st.SentenceTransformer(
        modules=[*parts, modules.Router(routes), modules.Normalize()], device="cpu"
    )
    theirs.save(os.fspath(tmp_path / "theirs"))
    if kind == "Asym":
        list_file = tmp_path / "theirs" / "modules.json"
        list_file.write_text(list_file.read_text().replace("router.Router", "asym.Asym"))
        router = next((tmp_path / "theirs").glob("*/router_config.json"))
        router.rename(router.with_name("config.json"))
    ours = Encoder.load(tmp_path / "theirs")
    assert not ours.module.config.tied and ours.module.config.normalize
    expected = both_sides(theirs, TEXTS)
    for side in SIDES:
        np.testing.assert_allclose(ours.encode(TEXTS, side), expected[side], rtol=0, atol=2e-5)


def test_lower_case_of_a_tokenizer_with_cases(tmp_path: Path) -> None:
    """sentence_bert_config.json may ask for it; it is kept when the folder is written again."""
    st = pytest.importorskip("sentence_transformers")
    module, variables = dual()
    tokenizer = toy_tokenizers.numbered_words(tmp_path / "tokenizer")
    folder = huggingface.save(tmp_path / "model", module, variables, tokenizer=tokenizer)
    file = folder / sentence_transformers.LENGTHS
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": True}))
    texts = ["W9 w7", "w8 W5"]
    again = huggingface.save(tmp_path / "again", module, variables, tokenizer=folder)
    theirs = st.SentenceTransformer(os.fspath(again), device="cpu").encode(texts)
    for place in (folder, again):
        ours = Encoder.load(place)
        assert ours.tokenizer.encode_batch(texts) == [[9, 7], [8, 5]]
    np.testing.assert_allclose(ours.encode(texts), theirs, rtol=0, atol=2e-5)


# Every family with a tokenizer of its own.

CONFIGS: dict[str, BackboneConfig] = {
    **toy_configs.masking(32),
    "xlmr": XlmRobertaConfig(**toy_configs.SIZES, max_positions=34, type_vocab_size=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_of_texts(name: str, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    tokenizer = toy_tokenizers.of(name, tmp_path / "tokenizer")
    module = DualEncoder(DualEncoderConfig(CONFIGS[name], pooling="mean", normalize=True))
    variables = hf.random_variables(module)
    folder = huggingface.save(
        tmp_path / "model", module, variables, tokenizer=tokenizer, max_length=24
    )
    ours = Encoder.load(folder).encode(toy_tokenizers.TEXTS)
    theirs = st.SentenceTransformer(os.fspath(folder), device="cpu").encode(toy_tokenizers.TEXTS)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert np.abs(ours[0] - ours[1]).max() > 0.01


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_of_pairs(name: str, tmp_path: Path) -> None:
    """With the special tokens of the family between the texts: two for RoBERTa."""
    st, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    tokenizer = toy_tokenizers.of(name, tmp_path / "tokenizer")
    module = CrossEncoder(CONFIGS[name].with_parts("pooler"))
    folder = huggingface.save(
        tmp_path / "model", module, hf.random_variables(module), tokenizer=tokenizer
    )
    queries, passages = toy_tokenizers.TEXTS, toy_tokenizers.TEXTS[1:] + toy_tokenizers.TEXTS[:1]
    ours = Reranker.load(folder, RerankerOptions(max_length=32)).score(queries, passages)
    peer = st.CrossEncoder(os.fspath(folder), device="cpu")
    pairs = list(zip(queries, passages, strict=True))
    theirs = peer.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert np.ptp(ours) > 1e-3
