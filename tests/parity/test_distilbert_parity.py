"""DistilBERT: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

import json
from pathlib import Path

import hf_encoders as hf
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.models.bert import DistilBertConfig


CASE = hf.Case(
    "DistilBert",
    {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 22},
)


@hf.scans
def test_hidden_states(scan: bool, tmp_path: Path) -> None:
    hf.check_hidden_states(CASE, tmp_path, scan)


def test_gradients(tmp_path: Path) -> None:
    hf.check_gradients(CASE, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_round_trip(kind: str, tmp_path: Path) -> None:
    hf.check_round_trip(CASE, tmp_path, kind, scan=True)


def test_classifier(tmp_path: Path) -> None:
    hf.check_classifier(CASE, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASE, tmp_path)


def test_epsilon_is_fixed() -> None:
    with pytest.raises(UserError, match="layer_norm_eps=1e-05 is not supported by DistilBERT"):
        DistilBertConfig(layer_norm_eps=1e-5)


def test_a_classifiers_dropout(tmp_path: Path) -> None:
    """transformers drops a fifth before the output, unless config.json says another share."""
    for said in (None, 0.3):
        _, model = CASE.folder(tmp_path, "ForSequenceClassification", num_labels=1)
        file = tmp_path / "config.json"
        raw = json.loads(file.read_text())
        raw.pop("seq_classif_dropout", None)
        file.write_text(json.dumps(raw | ({} if said is None else {"seq_classif_dropout": said})))
        again = type(model).from_pretrained(tmp_path)
        module, given = huggingface.load(tmp_path)
        rate = module.classifier_dropout
        rate = module.config.classifier_dropout if rate is None else rate
        assert rate == again.config.seq_classif_dropout == (0.2 if said is None else said)
        out = huggingface.save(tmp_path / f"ours-{said}", module, given)
        assert json.loads((out / "config.json").read_text())["seq_classif_dropout"] == rate
