"""RoBERTa and XLM-R: transformers' hidden states, gradients, classifiers and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy_backbones as toy

from qac_jax.errors import UserError
from qac_jax.hub import huggingface


SETTINGS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 14,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
FAMILY = toy.Family("Roberta", SETTINGS, pad=1)
FAMILIES = [FAMILY, toy.Family("XLMRoberta", SETTINGS, pad=1)]


@pytest.mark.parametrize("precision", toy.HIDDEN)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_hidden_states(family: toy.Family, precision: str, tmp_path: Path) -> None:
    toy.check_hidden_states(family, tmp_path, precision)


def test_gradients(tmp_path: Path) -> None:
    toy.check_gradients(FAMILY, tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_round_trip(family: toy.Family, kind: str, tmp_path: Path) -> None:
    toy.check_round_trip(family, tmp_path, kind)


def test_classifier(tmp_path: Path) -> None:
    toy.check_classifier(FAMILY, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    toy.check_refusals(FAMILY, tmp_path)


def test_positions_begin_after_the_padding(tmp_path: Path) -> None:
    """14 rows are 12 positions, and the first one is row 2."""
    FAMILY.make(tmp_path, "Model")
    module, variables = huggingface.load(tmp_path)
    assert module.config.max_length == 12
    vectors = module.apply(variables, 3, method="position_vectors")
    table = variables["params"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(vectors, table[2:5])
    with pytest.raises(UserError, match="texts of 13 tokens do not fit this model, which has 12"):
        module.apply(variables, np.full((1, 13), 5))
