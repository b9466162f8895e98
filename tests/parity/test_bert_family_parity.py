"""BERT's relatives and ModernBERT are transformers': states, gradients, classifiers, files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import hf_encoders as hf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface
from qac_jax.models.bert import DistilBertConfig, MpnetConfig
from qac_jax.models.heads import BidirectionalHead
from qac_jax.models.layers import Runtime
from qac_jax.models.modernbert import ModernBert, ModernBertConfig


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
ROBERTA = SIZES | {"max_position_embeddings": 24, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ELECTRA = SIZES | {"max_position_embeddings": 22, "embedding_size": 8}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
MPNET_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
MODERNBERT = MPNET_SIZES | {
    "num_hidden_layers": 5,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 500.0,
    "local_rope_theta": 20.0,
    **{f"{role}_token_id": 2 for role in ("bos", "cls")},
    **{f"{role}_token_id": 3 for role in ("eos", "sep")},
}
BIASES = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
    "decoder_bias": False,
    "classifier_activation": "relu",
    "hidden_activation": "silu",
    "global_attn_every_n_layers": 3,
}
CASES = {
    "roberta": hf.Case("Roberta", ROBERTA),
    "distilbert": hf.Case("DistilBert", DISTILBERT | {"max_position_embeddings": 22}),
    "electra": hf.Case("Electra", ELECTRA, pad=0),
    "mpnet": hf.Case("MPNet", MPNET_SIZES | {"hidden_act": "relu"}),  # its MLM head stays with gelu
    "modernbert": hf.Case("ModernBert", MODERNBERT),
}
VARIANTS = CASES | {
    "xlm-roberta": hf.Case("XLMRoberta", ROBERTA),
    "electra-wide": hf.Case("Electra", ELECTRA | {"embedding_size": 16}, pad=0),
    "modernbert-biases": hf.Case("ModernBert", MODERNBERT | BIASES),
}
MPNET = MpnetConfig(50, 32, 3, 4, 48, 24)
MODERN = ModernBertConfig(50, 32, 5, 4, 48, 24, global_every=2, window=8)
KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification")
each = pytest.mark.parametrize("name", CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_states(name: str, tmp_path: Path) -> None:
    hf.check_hidden_states(VARIANTS[name], tmp_path)


@each
def test_hidden_states_of_stacked_layers(name: str, tmp_path: Path) -> None:
    hf.check_hidden_states(CASES[name], tmp_path, scan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "modernbert-biases"])
def test_gradients(name: str, tmp_path: Path) -> None:
    hf.check_gradients(VARIANTS[name], tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    for kind in KINDS:
        hf.check_round_trip(VARIANTS[name], tmp_path / kind, kind, scan=kind != "Model")


@each
def test_classifier(name: str, tmp_path: Path) -> None:
    hf.check_classifier(CASES[name], tmp_path)


@pytest.mark.slow
def test_a_modernberts_classifier_of_means(tmp_path: Path) -> None:
    hf.check_classifier(CASES["modernbert"], tmp_path, classifier_pooling="mean")


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


@pytest.mark.parametrize(("config", "extra"), [(MPNET, "stack_bias"), (MODERN, "stack_norm")])
def test_heads_have_parts_of_their_own(config: Any, extra: str, tmp_path: Path) -> None:
    """Scores of positions (MPNet) or a norm of their input (ModernBERT)."""
    head = BidirectionalHead(config, num_layers=2)
    params = backbones.new_parameters(head)
    assert set(params["layers"]) == {extra, "layers"}
    file = tmp_path / "heads.safetensors"
    huggingface.save_heads(file, {"c_head": (head, {"params": params})})
    again, loaded = huggingface.load_heads(file, config)["c_head"]
    assert again == head
    jax.tree.map(np.testing.assert_array_equal, params, loaded["params"])


def test_what_no_such_model_has() -> None:
    with pytest.raises(UserError, match="layer_norm_eps=1e-05 is not supported by DistilBERT"):
        DistilBertConfig(layer_norm_eps=1e-5)
    with pytest.raises(UserError, match="num_buckets=16 .* expected 32"):
        MpnetConfig(num_buckets=16)
    with pytest.raises(UserError, match="max_positions=2 leaves no position"):
        MpnetConfig(max_positions=2)
    ids, module = np.ones((1, 23), np.int32), MPNET.build(Runtime())
    with pytest.raises(UserError, match="23 tokens .* 22 positions"):
        module.apply({"params": backbones.new_parameters(module)}, ids)


def test_a_language_models_head_starts_a_classifier(tmp_path: Path) -> None:
    """As in transformers, where both have the tensors head.*"""
    folder, model = CASES["modernbert"].folder(tmp_path / "m", "ForMaskedLM")
    options = backbones.Options(pooler=True, mlm_head=False)
    module, given = huggingface.load(folder, options=options)
    assert module.config.pooler and not module.config.mlm_head
    kernel = given["params"]["pooler"]["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, model.head.dense.weight.detach().numpy().T)


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "scan"), [("attention", True), ("dots", False), ("layer", True)])
def test_what_is_computed_again_changes_nothing(remat: str, scan: bool) -> None:
    plain = ModernBert(MODERN, Runtime(scan=scan))
    given = {"params": backbones.new_parameters(plain)}

    def gradients(module: ModernBert) -> Any:
        def loss(given: Any) -> jax.Array:
            last = module.apply(given, CASES["modernbert"].texts(), hf.LENGTHS).last
            return (last**2)[:, 0].sum()

        return jax.jit(jax.grad(loss))(given)

    again = gradients(plain.clone(runtime=Runtime(scan=scan, remat=remat)))
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(gradients(plain)), strict=True):
        assert hf.scaled(ours, np.asarray(theirs)) < 2e-5


def test_a_modernbert_of_one_layer() -> None:
    module = ModernBert(dataclasses.replace(MODERN, num_layers=1))
    given = {"params": backbones.new_parameters(module)}
    out = module.apply(given, CASES["modernbert"].texts(), hf.LENGTHS, hidden_states=(0, 1))
    first = module.apply(given, CASES["modernbert"].texts(), hf.LENGTHS, rows=1)
    np.testing.assert_allclose(first.last[:, 0], out.hidden_states[1][:, 0], atol=1e-6)


def test_older_and_newer_files_of_modernbert() -> None:
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


def test_what_a_modernbert_refuses() -> None:
    for raw, message in (
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types=.*not supported"),
        ({"rope_scaling": {"type": "linear"}}, "scales rotary positions"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn.*not supported"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is not known"),
        ({"local_attention": 1}, "window=1 is not valid"),
        ({"num_attention_heads": 32}, "cannot be rotated"),
    ):
        with pytest.raises(UserError, match=message):
            ModernBertConfig.from_hf(MODERN.to_hf() | raw)
    module = ModernBert(MODERN)
    with pytest.raises(UserError, match="has no position embeddings"):
        module.bind({}).position_vectors(3)
