"""ELECTRA: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_backbones as toy

from qac_jax.errors import UserError
from qac_jax.hub import huggingface


SETTINGS = {
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
FAMILY = toy.Family("Electra", SETTINGS)
FAMILIES = [FAMILY, toy.Family("Electra", SETTINGS | {"embedding_size": 16})]


@pytest.mark.parametrize("precision", toy.HIDDEN)
@pytest.mark.parametrize("family", FAMILIES, ids=["narrow", "wide"])
def test_hidden_states(family: toy.Family, precision: str, tmp_path: Path) -> None:
    toy.check_hidden_states(family, tmp_path, precision)


def test_gradients(tmp_path: Path) -> None:
    toy.check_gradients(FAMILY, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES, ids=["narrow", "wide"])
def test_round_trip(family: toy.Family, kind: str, tmp_path: Path) -> None:
    toy.check_round_trip(family, tmp_path, kind)


def test_classifier(tmp_path: Path) -> None:
    toy.check_classifier(FAMILY, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    toy.check_refusals(FAMILY, tmp_path)


def test_discriminators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a discriminator the encoder is read; narrow embeddings have no positions to add."""
    FAMILY.make(tmp_path, "ForPreTraining")
    module, variables = huggingface.load(tmp_path)
    assert "not used: discriminator_predictions" in capsys.readouterr().err
    assert not module.config.mlm_head and not module.config.pooler
    with pytest.raises(UserError, match="position embeddings have 8 dimensions"):
        module.apply(variables, 3, method="position_vectors")
