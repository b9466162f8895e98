"""RoBERTa and XLM-R: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

from pathlib import Path

import hf_encoders as hf
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import huggingface


SETTINGS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
CASE = hf.Case("Roberta", SETTINGS)
CASES = [CASE, hf.Case("XLMRoberta", SETTINGS)]


@hf.scans
@pytest.mark.parametrize("case", CASES, ids=str)
def test_hidden_states(case: hf.Case, scan: bool, tmp_path: Path) -> None:
    hf.check_hidden_states(case, tmp_path, scan)


def test_gradients(tmp_path: Path) -> None:
    hf.check_gradients(CASE, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_round_trip(case: hf.Case, kind: str, tmp_path: Path) -> None:
    hf.check_round_trip(case, tmp_path, kind, scan=True)


def test_classifier(tmp_path: Path) -> None:
    hf.check_classifier(CASE, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASE, tmp_path)


def test_positions_begin_after_the_padding(tmp_path: Path) -> None:
    """24 rows are 22 positions, and the first one is row 2."""
    CASE.folder(tmp_path, "Model")
    module, variables = huggingface.load(tmp_path)
    assert module.config.max_length == 22
    vectors = module.apply(variables, 3, method="position_vectors")
    table = variables["params"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(vectors, table[2:5])
    with pytest.raises(UserError, match="texts of 23 tokens do not fit this model, which has 22"):
        module.apply(variables, np.full((1, 23), 5))
