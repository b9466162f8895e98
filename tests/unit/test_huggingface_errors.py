"""The bridge's refusals, odd but valid folders, and atomic writing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_encoders import random_variables

from qac_jax.errors import UserError
from qac_jax.hub import huggingface, weights
from qac_jax.hub.backbones import Options
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.t5 import T5, T5Config


CONFIG = BertConfig(
    20, 8, num_layers=1, num_heads=2, intermediate_size=12, max_positions=6, mlm_head=True
)
PLAIN = dataclasses.replace(CONFIG, mlm_head=False)
PAIR = (("query", "question_encoder.", 0), ("passage", "ctx_encoder.", 0))
IDS, LENGTHS = np.ones((1, 4), np.int32), np.asarray([3])


def bert_tensors(config: BertConfig, encoder: str) -> weights.Tensors:
    return weights.tensors_of(config.table(encoder), random_variables(Bert(config))["params"])


def folder_of(path: Path, tensors: weights.Tensors, config: BertConfig = CONFIG, **raw) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config.to_hf() | raw))
    weights.write_file(path / "model.safetensors", tensors)
    return path


@pytest.fixture
def tensors() -> weights.Tensors:
    return bert_tensors(CONFIG, "bert.")


def test_unused_and_missing_are_listed(tensors, tmp_path: Path, capsys) -> None:
    extra = tensors | {"adapter.down": np.zeros(3, np.float32)}
    folder = folder_of(tmp_path / "m", extra)
    with pytest.raises(UserError, match=r"hold 1 tensor .*adapter\.down.*allow_unused"):
        huggingface.load(folder)
    huggingface.load(folder, options=Options(allow_unused=("adapter.*",)))
    assert "not used: adapter.down" in capsys.readouterr().err

    bias = "bert.encoder.layer.0.output.dense.bias"
    folder = folder_of(tmp_path / "m", {n: t for n, t in tensors.items() if n != bias})
    with pytest.raises(UserError, match=rf"lack 1 tensor .*{bias}.*allow_missing"):
        huggingface.load(folder)
    _, variables = huggingface.load(folder, options=Options(allow_missing=(bias,)))
    assert "missing, started anew" in capsys.readouterr().err
    np.testing.assert_array_equal(variables["params"]["layers"]["0"]["mlp"]["down"]["bias"], 0)


def test_odd_and_broken_folders(tensors, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no config.json"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json is not what it should be"):
        huggingface.load(tmp_path)
    both = bert_tensors(PLAIN, "encoder_q.") | bert_tensors(PLAIN, "encoder_k.")  # as MoCo's
    name = "bert.embeddings.position_embeddings.weight"
    longer = tensors | {name: np.zeros((7, 8), np.float32)}
    raw: Any
    for found, raw, message in [
        (both, {}, "several encoders.*'encoder_k.', 'encoder_q.'; keep one"),
        (longer, {}, rf"{name}.*\(7, 8\).*does not fit config.json"),
        (tensors, {"position_embedding_type": "relative_key"}, "relative_key.*not supported"),
        (tensors, {"model_type": "gpt2"}, "gpt2.*; expected a model of"),
    ]:
        with pytest.raises(UserError, match=message):
            huggingface.load(folder_of(tmp_path / "m", found, **raw))


def test_old_names_copies_and_leftovers(tensors, tmp_path: Path) -> None:
    """gamma and beta, the tied output matrix, buffers, the next-sentence head."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): t
        for name, t in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"]
    old["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
    old["bert.embeddings.position_ids"] = np.arange(6)
    module, variables = huggingface.load(folder_of(tmp_path / "m", old))
    huggingface.save(tmp_path / "out", module, variables)
    again = weights.read_folder(tmp_path / "out")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)

    old["cls.predictions.decoder.weight"] = old["cls.predictions.decoder.weight"] + 1
    with pytest.raises(UserError, match="untied output embeddings"):
        huggingface.load(folder_of(tmp_path / "m", old))


def test_dpr(tmp_path: Path) -> None:
    """One with a projection by itself, two without in one folder."""
    for side, prefix, width in (("alone", "ctx_encoder.", 5), *PAIR):
        found = bert_tensors(PLAIN, f"{prefix}bert_model.")
        found[f"{prefix}bert_model.pooler.dense.weight"] = np.zeros((8, 8), np.float32)
        if width:
            found[f"{prefix}encode_proj.weight"] = np.ones((width, 8), np.float32)
            found[f"{prefix}encode_proj.bias"] = np.ones(width, np.float32)
        said: Any = {"model_type": "dpr", "projection_dim": width}
        folder = folder_of(tmp_path / side, found, PLAIN, **said)
        module, variables = huggingface.load(folder)
        assert module.config == DualEncoderConfig(PLAIN, pooling="cls", projection=width or None)
        assert module.apply(variables, IDS, LENGTHS).shape == (1, width or 8)
    assert not huggingface.load(tmp_path)[0].config.tied


def test_dual_encoders_of_bare_models(tensors, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", tensors)
    with pytest.raises(UserError, match="give --pooling mean, or another of cls, mean"):
        huggingface.load_dual_encoder(folder)
    other = folder_of(tmp_path / "other", bert_tensors(PLAIN, ""), PLAIN)
    with pytest.raises(UserError, match="built differently"):
        huggingface.load_dual_encoder(folder, other, pooling="cls")


def test_sentence_transformers_refusals(tmp_path: Path) -> None:
    module = DualEncoder(DualEncoderConfig(PLAIN, projection=5))
    folder = huggingface.save(tmp_path / "m", module, random_variables(module))
    pooling, modules = folder / "1_Pooling" / "config.json", folder / "modules.json"
    lstm = {"idx": 3, "name": "3", "path": "", "type": "sentence_transformers.models.LSTM"}
    for file, change, message in (
        (pooling, lambda c: {"pooling_mode": ["mean", "max"]}, "pools by mean and max; expected"),
        (modules, lambda c: [*c, lstm], "Dense, LSTM; supported are Transformer, Pooling"),
        (modules, lambda c: [*c[:1], c[1] | {"path": "../x"}], r"'\.\./x', which lies outside"),
    ):
        before = file.read_text()
        file.write_text(json.dumps(change(json.loads(before))))
        with pytest.raises(UserError, match=message):
            huggingface.load(folder)
        file.write_text(before)


def test_saving_is_atomic_and_careful(tensors, tmp_path: Path, monkeypatch) -> None:
    module, variables = huggingface.load(folder_of(tmp_path / "m", tensors))
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty; choose another folder$"):
        huggingface.save(thesis, module, variables)
    assert (thesis / "chapter.txt").exists()

    def full_disk(*_):
        raise OSError("no space left")

    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(weights, "write_file", full_disk)
    for target in (tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(OSError, match="no space left"):
            huggingface.save(target, module, variables)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "m", "thesis"]
    monkeypatch.undo()
    huggingface.save(tmp_path / "empty", module, variables)  # an empty folder is no obstacle


def test_t5_tied_flags_and_copies(tmp_path: Path) -> None:
    """lm_head equal to the embedding is one parameter; embed_tokens are copies."""
    module = T5(T5Config(9, 8, 4, 8, num_layers=1, num_decoder_layers=1, num_heads=2))
    folder = huggingface.save(tmp_path / "t5", module, random_variables(module))
    tensors = weights.read_folder(folder)
    shared = tensors.pop("shared.weight")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = shared
    weights.write_file(folder / "model.safetensors", tensors)
    assert huggingface.load(folder)[0] == module
    weights.write_file(folder / "model.safetensors", tensors | {"lm_head.weight": shared + 1})
    assert not huggingface.load(folder)[0].config.tied
