"""MPNet is transformers' MPNet: hidden states, gradients, folders; formulas of its cost."""

from __future__ import annotations

from pathlib import Path

import hf_encoders as hf
import jax
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface
from qac_jax.models.bert import Mpnet, MpnetConfig
from qac_jax.models.heads import BidirectionalHead


CASE = hf.Case(
    "MPNet",
    {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 24,
        "hidden_act": "relu",  # the MLM head stays with gelu
    },
)
CONFIG = MpnetConfig(50, 32, 3, 4, 48, 24)


@hf.scans
def test_hidden_states(scan: bool, tmp_path: Path) -> None:
    hf.check_hidden_states(CASE, tmp_path, scan)


def test_gradients(tmp_path: Path) -> None:
    hf.check_gradients(CASE, tmp_path)


@hf.scans
@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_round_trip(kind: str, scan: bool, tmp_path: Path) -> None:
    hf.check_round_trip(CASE, tmp_path, kind, scan)


def test_classifier(tmp_path: Path) -> None:
    hf.check_classifier(CASE, tmp_path)


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASE, tmp_path)


def test_distances_of_long_texts() -> None:
    """Buckets beyond 128 tokens, which transformers computes with torch's logarithm."""
    torch = pytest.importorskip("torch")
    encoder = CASE.model("Model", max_position_embeddings=402).encoder
    with torch.no_grad():
        expected = encoder.compute_position_bias(torch.zeros(1, 400, 32)).numpy()
    module = BidirectionalHead(CONFIG, num_layers=1)
    bias = module.bind({"params": _params(module)}).layers.stack_bias
    table = encoder.relative_attention_bias.weight.detach().numpy()
    actual = bias.clone(parent=None).apply({"params": {"embedding": table}}, 400)
    np.testing.assert_array_equal(actual, expected)


def _params(module) -> dict:
    return backbones.new_parameters(module)


def test_a_head_has_scores_of_its_own(tmp_path: Path) -> None:
    head = BidirectionalHead(CONFIG, num_layers=2)
    params = _params(head)
    assert set(params["layers"]) == {"stack_bias", "layers"}
    file = tmp_path / "heads.safetensors"
    huggingface.save_heads(file, {"c_head": (head, {"params": params})})
    again, loaded = huggingface.load_heads(file, CONFIG)["c_head"]
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, params, loaded["params"])


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="num_buckets=16 .* expected 32"):
        MpnetConfig(num_buckets=16)
    with pytest.raises(UserError, match="max_positions=2 leaves no position"):
        MpnetConfig(max_positions=2)
    module = Mpnet(CONFIG)
    ids = np.ones((1, 23), np.int32)
    with pytest.raises(UserError, match="23 tokens .* 22 positions"):
        module.apply({"params": _params(module)}, ids)
