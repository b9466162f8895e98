"""Hugging Face -> Flax -> Hugging Face: the same tensors, byte for byte, and the same results."""

import functools
from pathlib import Path
from typing import Any

import golden_cases as golden
import hf_encoders as hf
import jax
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.exporting.export import Export
from qac_jax.hub import huggingface, sentence_transformers, weights
from qac_jax.hub.backbones import Options
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.pipeline.stage import execute
from qac_jax.text import tokenizers


def discovered(pattern: str) -> list[Path]:
    found = sorted(golden.root().glob(pattern))
    assert found, f"no {pattern} in {golden.root()}"
    return found


FOLDERS = [file.parent for file in discovered("**/config.json")]
HEADS = [file for file in discovered("**/*.safetensors") if "head" in file.name]
IDS = np.asarray([[2, 9, 7, 5, 3], [2, 8, 3, 0, 0]], np.int32)
LENGTHS = np.asarray([5, 3], np.int32)


def assert_same_tensors(actual: weights.Tensors, expected: weights.Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert actual[name].tobytes() == tensor.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
def test_tensors_survive(scan: bool, tmp_path: Path) -> None:
    for number, folder in enumerate(FOLDERS):
        check_tensors(folder, scan, tmp_path / str(number))


def check_tensors(folder: Path, scan: bool, out: Path) -> None:
    expected = weights.read_folder(folder)
    module, variables = huggingface.load(folder, Runtime(scan=scan))
    heads = None
    if any(name.startswith(("c_head.", "d_head.")) for name in expected):  # in the model's file
        heads = huggingface.load_heads(folder, module.config, Runtime(scan=scan))
    huggingface.save(out, module, variables, heads=heads)
    actual = weights.read_folder(out)
    if heads:
        actual |= weights.read_file(out / "heads.safetensors")
    assert_same_tensors(actual, expected)
    again, _ = huggingface.load(out, Runtime(scan=scan))
    assert again == module


@pytest.mark.parametrize("scan", [False, True], ids=["loop", "scan"])
def test_heads_survive(scan: bool, tmp_path: Path) -> None:
    for file in HEADS:
        heads = huggingface.load_heads(file, config_beside(file), Runtime(scan=scan))
        huggingface.save_heads(tmp_path / "heads.safetensors", heads)
        actual = weights.read_file(tmp_path / "heads.safetensors")
        assert_same_tensors(actual, weights.read_file(file))


def config_beside(file: Path) -> Any:
    return huggingface.load(min(file.parent.glob("**/config.json")).parent)[0].config


def test_prefixed_heads(tmp_path: Path) -> None:
    """The official model.pt may put a prefix before the names, and holds buffers too."""
    file = HEADS[0]
    plain = weights.read_file(file)
    renamed = {f"lm.{name}": tensor for name, tensor in plain.items()}
    weights.write_file(tmp_path / "h.safetensors", renamed | {"co_target": np.zeros(4)})
    heads = huggingface.load_heads(tmp_path / "h.safetensors", config_beside(file))
    huggingface.save_heads(tmp_path / "again.safetensors", heads)
    assert_same_tensors(weights.read_file(tmp_path / "again.safetensors"), plain)


TINY = BertConfig(40, 16, 2, 2, 24, 12, pooler=True)
DUAL = {
    "normalised": DualEncoderConfig(TINY, pooling="mean", normalize=True, scale=20.0),
    "projected": DualEncoderConfig(
        TINY, tied=False, projection=6, projection_activation="tanh", query_prompt="w7 "
    ),
}


def vectors_of(module: DualEncoder, variables: dict, side: str) -> np.ndarray:
    apply = jax.jit(functools.partial(module.apply, side=side))
    return np.asarray(apply(variables, IDS, LENGTHS))


@pytest.mark.parametrize("name", DUAL)
def test_dual_encoder(name: str, tmp_path: Path) -> None:
    runtime = Runtime(scan=DUAL[name].tied)
    module = DualEncoder(DUAL[name], runtime)
    variables = hf.random_variables(module)
    folder = huggingface.save(tmp_path / "dual", module, variables, max_length=9)
    again, loaded = huggingface.load(folder, runtime)
    assert again == module
    assert sentence_transformers.max_length(folder) == 9
    for side in ("query", "passage"):
        np.testing.assert_array_equal(
            vectors_of(again, loaded, side), vectors_of(module, variables, side)
        )


def test_two_bare_encoders(tmp_path: Path) -> None:
    """As SPAR's are published: --pooling says how their vectors are made, and export keeps it."""
    bert = Bert(BertConfig(tokenizers.load().vocab_size, 16, 2, 2, 16, 12))
    words = tokenizers.ASSETS / tokenizers.SHIPPED
    drawn = hf.random_variables(bert)
    for scale, side in enumerate(("query", "passage"), 1):
        variables = jax.tree.map(functools.partial(np.multiply, scale), drawn)
        huggingface.save(tmp_path / "spar" / side, bert, variables, tokenizer=words)
    with pytest.raises(UserError, match="give --pooling"):
        huggingface.load(tmp_path / "spar")
    module, variables = huggingface.load_dual_encoder(tmp_path / "spar", pooling="cls")
    assert not module.config.tied and module.config.pooling == "cls"
    execute(Export(model=str(tmp_path / "spar"), pooling="cls"), tmp_path / "said")
    again, loaded = huggingface.load(tmp_path / "said")
    assert again.config == module.config
    for side in ("query", "passage"):
        np.testing.assert_array_equal(
            vectors_of(again, loaded, side), vectors_of(module, variables, side)
        )


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
    known = ("decoder_logits", "mlm_logits", f"logits_{logits.shape[-1]}label")
    name = next(name for name in known if name in arrays)
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
