"""Fault 11: model folders that are wrong in one value are refused in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from qac_jax.errors import UserError, exit_code
from qac_jax.hub import sentence_transformers, weights
from qac_jax.models.bert import BertConfig
from qac_jax.text import tokenizers
from qac_jax.text.tokenizers import text_of


def test_values_that_no_model_has():
    odd: list[Any] = [[], float("nan"), True, -1, 10**12]
    wrong = [("hidden_size", value) for value in odd]
    for key, value in [*wrong, ("hidden_dropout_prob", {}), ("hidden_act", [])]:
        with pytest.raises(UserError, match=f"config.json: {key} = "):
            BertConfig.from_hf({"model_type": "bert", key: value}, pooler=False, mlm_head=False)


def test_files_of_sentence_transformers_and_indexes_of_shards(tmp_path: Path):
    settings = tmp_path / sentence_transformers.SETTINGS
    for said in ({"prompts": 3}, {"qac_jax": {"query_length": -1}}, {"scale": "x"}):
        settings.write_text(json.dumps(said))
        with pytest.raises(UserError, match="is not what it should be .*copy the folder"):
            sentence_transformers._described(tmp_path)
    for text in ('{"weight_map": {"a": 3}}', "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UserError, match="index.json is not what it should be"):
            weights.read_folder(tmp_path)


def test_vocabularies_that_are_none(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes("[PAD]\n".encode("utf-16"))
    with pytest.raises(UserError, match="vocab.txt is not UTF-8"):
        tokenizers.load(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("a\n")
    with pytest.raises(UserError, match="has no 'eos' token"):
        text_of(tokenizers.load(str(tmp_path)), {"title": "t", "text": "x"}, "separate")


def test_links_and_folders_in_place_of_files(tmp_path: Path, capsys):
    for name in ("link", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (tmp_path / "link" / "sentence_bert_config.json").symlink_to("nowhere")
    assert tokenizers.load(str(tmp_path / "link")).vocab_size == 5
    (tmp_path / "folder" / "tokenizer_config.json").mkdir()
    assert exit_code(lambda: tokenizers.load(str(tmp_path / "folder")).vocab_size) == 2
    assert "tokenizer_config.json cannot be used (Is a directory)" in capsys.readouterr().err
