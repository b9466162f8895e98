"""ModernBERT is transformers' ModernBERT: hidden states, gradients, folders; its cost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import hf_encoders as hf
import jax
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface
from qac_jax.models.heads import BidirectionalHead
from qac_jax.models.layers import Runtime
from qac_jax.models.modernbert import ModernBert, ModernBertConfig


CASE = hf.Case(
    "ModernBert",
    {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 24,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 500.0,
        "local_rope_theta": 20.0,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
)
CONFIG = ModernBertConfig(50, 32, 5, 4, 48, 24, global_every=2, window=8)
BIASES = {
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "decoder_bias": False,
    "classifier_bias": True,
    "classifier_activation": "relu",
    "hidden_activation": "silu",
    "global_attn_every_n_layers": 3,
}
settings = pytest.mark.parametrize("more", [{}, BIASES], ids=["plain", "biases"])


@hf.scans
@settings
def test_hidden_states(scan: bool, more: dict[str, Any], tmp_path: Path) -> None:
    hf.check_hidden_states(CASE, tmp_path, scan, **more)


@settings
def test_gradients(more: dict[str, Any], tmp_path: Path) -> None:
    hf.check_gradients(CASE, tmp_path, **more)


@settings
@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_round_trip(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    hf.check_round_trip(CASE, tmp_path, kind, scan=kind != "Model", **more)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classifier(pooling: str, tmp_path: Path) -> None:
    hf.check_classifier(CASE, tmp_path, classifier_pooling=pooling)


def test_refusals(tmp_path: Path) -> None:
    hf.check_refusals(CASE, tmp_path)


def test_a_language_models_head_starts_a_classifier(tmp_path: Path) -> None:
    """As in transformers, where both have the tensors head.*"""
    folder, model = CASE.folder(tmp_path / "m", "ForMaskedLM")
    options = backbones.Options(pooler=True, mlm_head=False)
    module, given = huggingface.load(folder, options=options)
    assert module.config.pooler and not module.config.mlm_head
    kernel = given["params"]["pooler"]["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, model.head.dense.weight.detach().numpy().T)


@pytest.mark.parametrize(
    ("remat", "scan"), [("attention", True), ("dots", False), ("layer", False), ("layer", True)]
)
def test_what_is_computed_again_changes_nothing(remat: str, scan: bool) -> None:
    plain = ModernBert(CONFIG, Runtime(scan=scan))
    given = {"params": backbones.new_parameters(plain)}

    def gradients(module: ModernBert) -> Any:
        def loss(given: Any) -> jax.Array:
            return (module.apply(given, CASE.texts(), hf.LENGTHS).last ** 2)[:, 0].sum()

        return jax.jit(jax.grad(loss))(given)

    again = gradients(plain.clone(runtime=Runtime(scan=scan, remat=remat)))
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(gradients(plain)), strict=True):
        assert hf.scaled(ours, np.asarray(theirs)) < 2e-5


def test_one_layer() -> None:
    module = ModernBert(dataclasses.replace(CONFIG, num_layers=1))
    given = {"params": backbones.new_parameters(module)}
    out = module.apply(given, CASE.texts(), hf.LENGTHS, hidden_states=(0, 1))
    first = module.apply(given, CASE.texts(), hf.LENGTHS, rows=1)
    np.testing.assert_allclose(first.last[:, 0], out.hidden_states[1][:, 0], atol=1e-6)


def test_a_head_normalises_its_input(tmp_path: Path) -> None:
    head = BidirectionalHead(CONFIG, num_layers=2)
    params = backbones.new_parameters(head)
    assert set(params["layers"]) == {"layers", "stack_norm"}
    assert "attention_norm" in params["layers"]["layers"]["0"]
    file = tmp_path / "heads.safetensors"
    huggingface.save_heads(file, {"c_head": (head, {"params": params})})
    again, loaded = huggingface.load_heads(file, CONFIG)["c_head"]
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, params, loaded["params"])


def test_older_and_newer_files() -> None:
    kinds = ["full_attention", "sliding_attention"]
    newer = {
        "layer_types": (2 * kinds)[:3],
        "rope_parameters": {
            kinds[0]: {"rope_type": "default", "rope_theta": 7.0},
            kinds[1]: {"rope_type": "default", "rope_theta": 5.0},
        },
    }
    config = ModernBertConfig.from_hf(newer)
    assert (config.global_every, config.global_theta, config.local_theta) == (2, 7.0, 5.0)
    config = ModernBertConfig.from_hf({"global_rope_theta": 7.0, "local_rope_theta": None})
    assert (config.global_every, config.global_theta, config.local_theta) == (3, 7.0, 7.0)


def test_what_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    for raw, message in (
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types=.*not supported"),
        ({"rope_scaling": {"type": "linear"}}, "scales rotary positions"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn.*not supported"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is not known"),
        ({"local_attention": 1}, "window=1 is not valid"),
        ({"num_attention_heads": 32}, "cannot be rotated"),
    ):
        with pytest.raises(UserError, match=message):
            ModernBertConfig.from_hf(CONFIG.to_hf() | raw)
    module = ModernBert(CONFIG)
    with pytest.raises(UserError, match="has no position embeddings"):
        module.bind({}).position_vectors(3)
