"""ELECTRA: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

from pathlib import Path

import hf_encoders as hf
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import huggingface


SETTINGS = {
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 22,
}
CASE = hf.Case("Electra", SETTINGS, pad=0)
CASES = [CASE, hf.Case("Electra", SETTINGS | {"embedding_size": 16}, pad=0)]


@hf.scans
@pytest.mark.parametrize("case", CASES, ids=["narrow", "wide"])
def test_hidden_states(case: hf.Case, scan: bool, tmp_path: Path) -> None:
    hf.check_hidden_states(case, tmp_path, scan)


def test_gradients(tmp_path: Path) -> None:
    hf.check_gradients(CASE, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("case", CASES, ids=["narrow", "wide"])
def test_round_trip(case: hf.Case, kind: str, tmp_path: Path) -> None:
    hf.check_round_trip(case, tmp_path, kind, scan=True)


def test_classifier(tmp_path: Path) -> None:
    hf.check_classifier(CASE, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASE, tmp_path)


def test_discriminators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a discriminator the encoder is read; narrow embeddings have no positions to add."""
    CASE.folder(tmp_path, "ForPreTraining")
    module, variables = huggingface.load(tmp_path)
    assert "not used: discriminator_predictions" in capsys.readouterr().err
    assert not module.config.mlm_head and not module.config.pooler
    with pytest.raises(UserError, match="position embeddings of this ELECTRA are narrower"):
        module.apply(variables, 3, method="position_vectors")
