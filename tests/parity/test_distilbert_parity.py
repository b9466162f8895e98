"""DistilBERT: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy_backbones as toy

from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.models.distilbert import DistilBertConfig


FAMILY = toy.Family(
    "DistilBert",
    {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 12},
)


@pytest.mark.parametrize("precision", toy.HIDDEN)
def test_hidden_states(precision: str, tmp_path: Path) -> None:
    toy.check_hidden_states(FAMILY, tmp_path, precision)


def test_gradients(tmp_path: Path) -> None:
    toy.check_gradients(FAMILY, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_round_trip(kind: str, tmp_path: Path) -> None:
    toy.check_round_trip(FAMILY, tmp_path, kind)


def test_classifier(tmp_path: Path) -> None:
    toy.check_classifier(FAMILY, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    toy.check_refusals(FAMILY, tmp_path)


def test_epsilon_is_fixed() -> None:
    with pytest.raises(UserError, match="layer_norm_eps=1e-05 is not supported by DistilBERT"):
        DistilBertConfig(layer_norm_eps=1e-5)


def test_a_classifiers_dropout(tmp_path: Path) -> None:
    """transformers drops a fifth before the output, unless config.json says another share."""
    for said in (None, 0.3):
        model = FAMILY.make(tmp_path, "ForSequenceClassification", num_labels=1)
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
