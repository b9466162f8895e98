"""Hugging Face -> Flax -> Hugging Face: the same tensors, byte for byte, and the same results."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import flax.linen as nn
import golden_cases as golden
import jax
import numpy as np
import pytest

from qac_jax.hub import huggingface, sentence_transformers, weights
from qac_jax.hub.backbones import Options
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime


def label(path: Path) -> str:
    return str(path.relative_to(golden.root()))


def discovered(pattern: str) -> list:
    found = sorted(golden.root().glob(pattern))
    assert found, f"no {pattern} in {golden.root()}"
    return [pytest.param(path, id=label(path)) for path in found]


FOLDERS = [
    pytest.param(case.values[0].parent, id=label(case.values[0].parent))
    for case in discovered("**/config.json")
]
HEADS = [c for c in discovered("**/*.safetensors") if "head" in c.values[0].name]
IDS = np.asarray([[2, 9, 7, 5, 3], [2, 8, 3, 0, 0]], np.int32)
LENGTHS = np.asarray([5, 3], np.int32)


def assert_same_tensors(actual: weights.Tensors, expected: weights.Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert actual[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_tensors_survive(folder: Path, scan: bool, tmp_path: Path) -> None:
    expected = weights.read_folder(folder)
    module, variables = huggingface.load(folder, Runtime(scan=scan))
    heads = None
    if any(
        name.startswith(("c_head.", "d_head.")) for name in expected
    ):  # heads in the model's own file
        heads = huggingface.load_heads(folder, module.config, Runtime(scan=scan))
    huggingface.save(tmp_path / "out", module, variables, heads=heads)
    actual = weights.read_folder(tmp_path / "out")
    if heads:
        actual |= weights.read_file(tmp_path / "out" / "heads.safetensors")
    assert_same_tensors(actual, expected)
    again, _ = huggingface.load(tmp_path / "out", Runtime(scan=scan))
    assert again == module


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
@pytest.mark.parametrize("file", HEADS)
def test_heads_survive(file: Path, scan: bool, tmp_path: Path) -> None:
    folder = next(p.parent for p in sorted(file.parent.glob("**/config.json")))
    bert, _ = huggingface.load(folder)
    heads = huggingface.load_heads(file, bert.config, Runtime(scan=scan))
    huggingface.save_heads(tmp_path / "heads.safetensors", heads)
    actual = weights.read_file(tmp_path / "heads.safetensors")
    assert_same_tensors(actual, weights.read_file(file))


def test_prefixed_heads(tmp_path: Path) -> None:
    """The official model.pt may put a prefix before the names, and holds buffers too."""
    file = HEADS[0].values[0]
    bert, _ = huggingface.load(next(p.parent for p in sorted(file.parent.glob("**/config.json"))))
    plain = weights.read_file(file)
    renamed = {f"lm.{name}": tensor for name, tensor in plain.items()}
    weights.write_file(tmp_path / "h.safetensors", renamed | {"co_target": np.zeros(4)})
    heads = huggingface.load_heads(tmp_path / "h.safetensors", bert.config)
    huggingface.save_heads(tmp_path / "again.safetensors", heads)
    assert_same_tensors(weights.read_file(tmp_path / "again.safetensors"), plain)


@functools.cache
def tiny() -> BertConfig:
    return BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=24,
        max_positions=12,
        pooler=True,
    )


@functools.cache
def tokenizer(folder: Path) -> Path:
    """A folder with a tokenizer whose words are w5, w6 …"""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 40))]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder.mkdir()
    backend.save(os.fspath(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}'
    )
    return folder


DUAL = {
    "cls": DualEncoderConfig(tiny(), query_prompt="w7 ", passage_prompt="w8 w9 "),
    "mean-normalised": DualEncoderConfig(tiny(), pooling="mean", normalize=True, scale=20.0),
    "projected": DualEncoderConfig(
        tiny(), pooling="mean", projection=6, projection_activation="tanh", normalize=True
    ),
    "projected-no-bias": DualEncoderConfig(tiny(), projection=6, projection_bias=False),
}


def random_variables(module: DualEncoder) -> dict:
    """Parameters of any size but 0, biases too, so that none can be lost unseen."""
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), IDS, LENGTHS))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


def vectors_of(module: DualEncoder, variables: dict, side: str) -> np.ndarray:
    apply = jax.jit(functools.partial(module.apply, side=side))
    return np.asarray(apply(variables, IDS, LENGTHS))


@pytest.mark.parametrize(
    ("name", "tied"),
    [(name, index % 2 == 0) for index, name in enumerate(DUAL)],
    ids=lambda value: value if isinstance(value, str) else "tied" if value else "untied",
)
def test_dual_encoder(name: str, tied: bool, tmp_path: Path) -> None:
    module = DualEncoder(dataclasses.replace(DUAL[name], tied=tied), Runtime(scan=tied))
    variables = random_variables(module)
    folder = huggingface.save(tmp_path / "dual", module, variables, max_length=9)
    again, loaded = huggingface.load(folder, Runtime(scan=tied))
    assert again == module
    assert sentence_transformers.max_length(folder) == 9
    for side in ("query", "passage"):
        np.testing.assert_array_equal(
            vectors_of(again, loaded, side), vectors_of(module, variables, side)
        )


@pytest.mark.parametrize("name", DUAL)
def test_sentence_transformers_agrees(name: str, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    module = DualEncoder(DUAL[name])
    variables = random_variables(module)
    folder = huggingface.save(
        tmp_path / "dual", module, variables, tokenizer=tokenizer(tmp_path / "tokenizer")
    )
    theirs = st.SentenceTransformer(os.fspath(folder), device="cpu")
    texts = ["w9 w7 w5", "w8"]
    plain = vectors_of(module, variables, "passage")
    np.testing.assert_allclose(theirs.encode(texts), plain, rtol=0, atol=1e-6)
    config = module.config
    assert theirs.similarity_fn_name == ("cosine" if config.normalize else "dot")
    for prompt, encode in (
        (config.query_prompt, theirs.encode_query),
        (config.passage_prompt, theirs.encode_document),
    ):
        prompted = theirs.encode([prompt + text for text in texts], prompt="")
        np.testing.assert_allclose(encode(texts), prompted, rtol=0, atol=1e-6)
        assert (np.abs(prompted - plain).max() > 1e-4) == bool(prompt)
    # What they save, we load.
    theirs.save(os.fspath(tmp_path / "theirs"))
    again, loaded = huggingface.load(tmp_path / "theirs")
    assert equal_but_scale(again.config, config)
    np.testing.assert_array_equal(vectors_of(again, loaded, "passage"), plain)


def equal_but_scale(left: DualEncoderConfig, right: DualEncoderConfig) -> bool:
    """Equal up to the scale, which sentence-transformers does not keep."""
    return dataclasses.replace(left, scale=1.0) == dataclasses.replace(right, scale=1.0)


@pytest.mark.parametrize("case", golden.parameters("08a_", "08b_", "01_", "09_"))
def test_transformers_loads_what_we_save(case: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    _, arrays = golden.load(case)
    folder = sorted(p.parent for p in case.glob("**/config.json"))[0]
    module, variables = huggingface.load(folder)
    out = huggingface.save(tmp_path / "out", module, variables)
    kind = transformers.AutoConfig.from_pretrained(out).architectures[0]
    theirs, report = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
    assert not any(report.values()), report
    names = ["input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"]
    given = {name: torch.tensor(arrays[name]) for name in names if name in arrays}
    with torch.no_grad():
        logits = theirs(**given).logits.numpy()
    name = next(
        n
        for n in ("decoder_logits", "mlm_logits", f"logits_{logits.shape[-1]}label")
        if n in arrays
    )
    golden.assert_activation(logits, arrays[name], "float32", what=name)


def test_missing_parts_start_anew(tmp_path: Path) -> None:
    """Parts allowed to be missing are drawn from the seed; the others come from the files."""
    case = golden.cases("07a_")[0] / "model_q"
    options = Options(mlm_head=True, allow_missing=("cls.*",), seed=3)
    module, variables = huggingface.load(case, options=options)
    assert module.config.mlm_head
    head = variables["params"]["mlm_head"]
    assert np.asarray(head["dense"]["kernel"]).std() > 0
    words = np.asarray(variables["params"]["embeddings"]["word"]["embedding"])
    expected = weights.read_folder(case)["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(words, expected)


def test_parts_can_be_left_out() -> None:
    case = golden.cases("01_")[0]
    module, variables = huggingface.load(case / "model", options=Options(mlm_head=False))
    assert not module.config.mlm_head and "mlm_head" not in variables["params"]
    module, variables = huggingface.load(case / "model_bert", options=Options(pooler=False))
    assert not module.config.pooler and "pooler" not in variables["params"]
