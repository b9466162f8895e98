"""Fault 11: model folders that are wrong in one value are refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import UserError, exit_code
from qac_jax.hub import names, sentence_transformers, weights
from qac_jax.models.bert import BertConfig
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import text_of


KEYS = ["hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings",
        "hidden_dropout_prob", "initializer_range", "type_vocab_size", "hidden_act"]  # fmt: skip


def test_values_that_no_model_has():
    odd: list[Any] = [[], {}, float("nan"), True]
    wrong = [(key, value) for key in KEYS for value in odd]
    sizes = [(key, value) for key in KEYS[:4] for value in (-1, 0, 10**12)]
    for key, value in wrong + sizes:
        with pytest.raises(UserError, match=f"config.json: {key} = "):
            BertConfig.from_hf({"model_type": "bert", key: value}, pooler=False, mlm_head=False)


def test_settings_of_sentence_transformers_of_a_wrong_type(tmp_path: Path):
    file = tmp_path / sentence_transformers.SETTINGS
    for value in ([1, "a"], -1, True, "x", None):
        file.write_text(json.dumps({"qac_jax": {"query_length": value}}))
        with pytest.raises(UserError, match="query_length = .* is not a length"):
            sentence_transformers._described(tmp_path)
    wrong: list[dict[str, Any]] = [{"default_prompt_name": ["a"]}, {"prompts": 3}, {"qac_jax": 1}]
    for settings in [*wrong, {"scale": "x"}]:
        file.write_text(json.dumps(settings))
        with pytest.raises(UserError, match="does not say how texts are read .*copy the folder"):
            sentence_transformers._described(tmp_path)


def test_vocabularies_that_are_none(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes("[PAD]\n".encode("utf-16"))
    with pytest.raises(UserError, match="vocab.txt is not UTF-8"):
        tokenizers.load(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("a\n")
    with pytest.raises(UserError, match="has no 'eos' token"):
        text_of(tokenizers.load(str(tmp_path)), {"title": "t", "text": "x"}, "separate")


def test_indexes_of_shards_and_modules_that_are_none(tmp_path: Path):
    for text in ('{"weight_map": {"a": 3}}', "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UserError, match="is not a valid index of weight shards"):
            weights.read_folder(tmp_path)
    (tmp_path / "modules.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="modules.json is not a list of modules"):
        sentence_transformers.listed(tmp_path)
    assert names.read_json(tmp_path / "modules.json") == {}


def test_links_and_folders_in_place_of_files(tmp_path: Path, capsys):
    for name in ("link", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "link" / "sentence_bert_config.json").symlink_to("nowhere")
    assert tokenizers.load(str(tmp_path / "link")).vocab_size == 5
    (tmp_path / "folder" / "tokenizer_config.json").mkdir()
    assert exit_code(lambda: tokenizers.load(str(tmp_path / "folder")).vocab_size) == 2
    assert "tokenizer_config.json cannot be used (Is a directory)" in capsys.readouterr().err
