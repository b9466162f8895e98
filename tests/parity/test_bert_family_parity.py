"""BERT's relatives are transformers': hidden states, gradients, classifiers and files."""

from __future__ import annotations

import json
from pathlib import Path

import hf_encoders as hf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface
from qac_jax.models.bert import DistilBertConfig, Mpnet, MpnetConfig
from qac_jax.models.heads import BidirectionalHead


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
ROBERTA = SIZES | {"max_position_embeddings": 24, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ELECTRA = SIZES | {"max_position_embeddings": 22, "embedding_size": 8}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
CASES = {
    "roberta": hf.Case("Roberta", ROBERTA),
    "distilbert": hf.Case("DistilBert", DISTILBERT | {"max_position_embeddings": 22}),
    "electra": hf.Case("Electra", ELECTRA, pad=0),
    "mpnet": hf.Case(
        "MPNet",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 24,
            "hidden_act": "relu",  # the MLM head stays with gelu
        },
    ),
}
VARIANTS = CASES | {
    "xlm-roberta": hf.Case("XLMRoberta", ROBERTA),
    "electra-wide": hf.Case("Electra", ELECTRA | {"embedding_size": 16}, pad=0),
}
MPNET = MpnetConfig(50, 32, 3, 4, 48, 24)
each = pytest.mark.parametrize("name", CASES)


@hf.scans
@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_states(name: str, scan: bool, tmp_path: Path) -> None:
    hf.check_hidden_states(VARIANTS[name], tmp_path, scan)


@each
def test_gradients(name: str, tmp_path: Path) -> None:
    hf.check_gradients(CASES[name], tmp_path)


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip(name: str, kind: str, tmp_path: Path) -> None:
    hf.check_round_trip(VARIANTS[name], tmp_path, kind, scan=kind != "Model")


@each
def test_classifier(name: str, tmp_path: Path) -> None:
    hf.check_classifier(CASES[name], tmp_path)


@each
def test_refusals(name: str, tmp_path: Path) -> None:
    hf.check_refusals(CASES[name], tmp_path)


def test_positions_begin_after_the_padding(tmp_path: Path) -> None:
    """24 rows are 22 positions, and the first one is row 2."""
    CASES["roberta"].folder(tmp_path, "Model")
    module, variables = huggingface.load(tmp_path)
    assert module.config.max_length == 22
    vectors = module.apply(variables, 3, method="position_vectors")
    table = variables["params"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(vectors, table[2:5])
    with pytest.raises(UserError, match="texts of 23 tokens do not fit this model, which has 22"):
        module.apply(variables, np.full((1, 23), 5))


def test_a_distilberts_classifier_dropout(tmp_path: Path) -> None:
    """transformers drops a fifth before the output, unless config.json says another share."""
    for said in (None, 0.3):
        _, model = CASES["distilbert"].folder(tmp_path, "ForSequenceClassification", num_labels=1)
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


def test_discriminators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a discriminator the encoder is read; narrow embeddings have no positions to add."""
    CASES["electra"].folder(tmp_path, "ForPreTraining")
    module, variables = huggingface.load(tmp_path)
    assert "not used: discriminator_predictions" in capsys.readouterr().err
    assert not module.config.mlm_head and not module.config.pooler
    with pytest.raises(UserError, match="position embeddings of this ELECTRA are narrower"):
        module.apply(variables, 3, method="position_vectors")


def test_an_mpnets_distances_of_long_texts() -> None:
    """Buckets beyond 128 tokens, which transformers computes with torch's logarithm."""
    torch = pytest.importorskip("torch")
    encoder = CASES["mpnet"].model("Model", max_position_embeddings=402).encoder
    with torch.no_grad():
        expected = encoder.compute_position_bias(torch.zeros(1, 400, 32)).numpy()
    module = BidirectionalHead(MPNET, num_layers=1)
    bias = module.bind({"params": backbones.new_parameters(module)}).layers.stack_bias
    given = {"params": {"embedding": encoder.relative_attention_bias.weight.detach().numpy()}}
    positions = jnp.arange(400)
    actual = bias.clone(parent=None).apply(given, positions, positions)
    np.testing.assert_array_equal(actual, expected)


def test_an_mpnets_head_has_scores_of_its_own(tmp_path: Path) -> None:
    head = BidirectionalHead(MPNET, num_layers=2)
    params = backbones.new_parameters(head)
    assert set(params["layers"]) == {"stack_bias", "layers"}
    file = tmp_path / "heads.safetensors"
    huggingface.save_heads(file, {"c_head": (head, {"params": params})})
    again, loaded = huggingface.load_heads(file, MPNET)["c_head"]
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, params, loaded["params"])


def test_what_no_such_model_has() -> None:
    with pytest.raises(UserError, match="layer_norm_eps=1e-05 is not supported by DistilBERT"):
        DistilBertConfig(layer_norm_eps=1e-5)
    with pytest.raises(UserError, match="num_buckets=16 .* expected 32"):
        MpnetConfig(num_buckets=16)
    with pytest.raises(UserError, match="max_positions=2 leaves no position"):
        MpnetConfig(max_positions=2)
    ids, module = np.ones((1, 23), np.int32), Mpnet(MPNET)
    with pytest.raises(UserError, match="23 tokens .* 22 positions"):
        module.apply({"params": backbones.new_parameters(module)}, ids)
