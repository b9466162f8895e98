"""DistilBERT: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_backbones as toy

from qac_jax.errors import UserError
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
