"""Weights files: PyTorch's without running their pickles, shards, half precision; T5X's."""

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorstore
import toy_generation
from flax import serialization, traverse_util
from toy_torch_files import Call, Global, archive, pickled, tensor

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, torch_files, weights
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.generator import Generator, Request
from qac_jax.inference.settings import EncoderOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.t5 import T5, T5Config, T5EncoderConfig


FLOATS = np.arange(6, dtype=np.float32)
STORAGES = {"0": FLOATS.tobytes()}


def test_reads_what_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = torch.nn.Linear(3, 2).state_dict() | {
        "view": torch.arange(6.0).reshape(2, 3).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "half": torch.arange(4).to(torch.bfloat16),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
    }
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "m.bin")
    found = torch_files.read(tmp_path / "m.bin")
    assert found.keys() == state.keys() and found["half"].dtype == ml_dtypes.bfloat16
    for name, value in state.items():
        wide = value.detach().to(torch.float64).numpy()
        np.testing.assert_array_equal(found[name].astype(np.float64), wide, err_msg=name)


def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for function in (("os", "system"), ("builtins", "eval"), ("torch", "load")):
        attack = Call(Global(*function), f"touch {proof}")
        file = archive(tmp_path / "m.bin", pickled({"w": tensor(), "x": attack}), STORAGES)
        with pytest.raises(UserError, match=f"refused.*{'.'.join(function)}"):
            torch_files.read(file)
    assert not proof.exists()
    # The same bytes, read by pickle itself, do run: the test above proves something.
    pickle.loads(pickled({"x": Call(Global("os", "system"), f"touch {proof}")}))
    assert proof.exists()


def test_a_pickle_sets_no_attributes(tmp_path: Path) -> None:
    attack = (
        b"\x80\x02}q\x00X\x01\x00\x00\x00wccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sbs."
    )
    with pytest.raises(UserError, match="no named tensors"):
        torch_files.read(archive(tmp_path / "m.bin", attack, STORAGES))
    assert not vars(torch_files._Unpickler._ordered)


def test_damage_is_said(tmp_path: Path) -> None:
    for bad in (
        tensor(size=1 << 80),
        tensor(offset=-1),
        tensor(shape=(2, 4)),
        tensor(shape=(1 << 40, 1), strides=(0, 1)),
        tensor(strides=(3, -1)),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), "no storage", 0, (2,), (1,)),
    ):
        file = archive(tmp_path / "m.bin", pickled({"w": bad}), STORAGES)
        with pytest.raises(UserError, match="tensor w does not fit its storage"):
            torch_files.read(file)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(UserError, match="not a zip archive"):
        torch_files.read(path)
    for description, message in (
        (b"\x80\x02}q", "its pickle is damaged"),
        (pickled({"w": tensor(kind="QInt8Storage")}), "QInt8Storage"),
        (pickled({"w": tensor(member="../../etc/passwd")}), "etc/passwd is missing"),
    ):
        with pytest.raises(UserError, match=message):
            torch_files.read(archive(path, description, STORAGES))
    packed = archive(path, pickled({"w": tensor()}), STORAGES, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="compressed"):
        torch_files.read(packed)


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    values = np.asarray([1.5, -2.25], np.float32)
    halves = {"a": values.astype(np.float16), "b": values.astype(ml_dtypes.bfloat16)}
    safetensors.numpy.save_file(halves, tmp_path / weights.SAFETENSORS)
    for tensor_read in weights.read_folder(tmp_path).values():
        assert tensor_read.dtype == np.float32
        np.testing.assert_array_equal(tensor_read, values)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards(ending: str, tmp_path: Path) -> None:
    name = weights.SAFETENSORS if ending == "safetensors" else weights.PYTORCH
    placed = {"a": f"part-1.{ending}", "b": f"part-2.{ending}"}
    for key, file in placed.items():
        if ending == "bin":
            archive(tmp_path / file, pickled({key: tensor()}), STORAGES)
        else:
            weights.write_file(tmp_path / file, {key: FLOATS})
    index = tmp_path / f"{name}.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    assert weights.read_folder(tmp_path).keys() == {"a", "b"}
    index.write_text(json.dumps({"weight_map": placed | {"c": placed["a"]}}))
    with pytest.raises(UserError, match="lack c"):
        weights.read_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.bin"}}))
    with pytest.raises(UserError, match="outside of the folder"):
        weights.read_folder(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no weights; expected model.safetensors"):
        weights.read_folder(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"12345")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        weights.read_file(tmp_path / "x.safetensors")


def test_written_files_are_reproducible(tmp_path: Path) -> None:
    tensors = {"b": FLOATS, "a": FLOATS.reshape(2, 3).T}
    weights.write_file(tmp_path / "1", tensors)
    weights.write_file(tmp_path / "2", dict(reversed(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    with safetensors.safe_open(os.fspath(tmp_path / "1"), framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(file.get_tensor("a"), tensors["a"])


def names_of_t5x(params: Any, gated: bool) -> dict[str, np.ndarray]:
    """The parameters as T5X's minimal T5 names them (t5x/examples/t5/network.py)."""
    found = {}
    for path, array in traverse_util.flatten_dict(params, sep=".").items():
        stack = path.partition(".")[0]
        own = "self_attention" if stack == "decoder" else "attention"
        turned = path.endswith((".relative_bias.embedding", "lm_head.embedding"))
        for ours, theirs in (
            *(("shared", "token_embedder"), ("lm_head.embedding", "decoder.logits_dense.kernel")),
            *(("relative_bias.", "relpos_bias.rel_"), (f"{stack}.norm", f"{stack}.{stack}_norm")),
            *((".layers.", ".layers_"), (".attention_norm", f".pre_{own}_layer_norm")),
            *((".cross_attention_norm", ".pre_cross_attention_layer_norm"), (".down.", ".wo.")),
            *((".mlp_norm", ".pre_mlp_layer_norm"), (".attention.", f".{own}.")),
            *((".cross_attention.", ".encoder_decoder_attention."), (".output.", ".out.")),
            *((".gate.", ".wi_0."), (".up.", ".wi_1." if gated else ".wi.")),
        ):
            path = path.replace(ours, theirs)
        found[path] = np.asarray(array.T if turned else array)
    return found


def write(folder: Path, arrays: dict[str, np.ndarray], layout: str) -> Path:
    """A checkpoint as T5X's Checkpointer writes it: arrays in the msgpack, or in TensorStore."""
    target: dict[str, Any] = dict(arrays)
    for name, array in arrays.items() if layout == "zarr" else ():
        kept = {"driver": "file", "path": f"target.{name}"}
        meta = {"shape": list(array.shape), "compressor": {"id": "gzip"}}
        spec = {"driver": "zarr", "dtype": array.dtype.name, "kvstore": kept, "metadata": meta}
        target[name] = spec
        there = {**spec, "kvstore": {**kept, "path": str(folder / f"target.{name}")}}
        tensorstore.open(there, create=True).result().write(array).result()
    folder.mkdir(exist_ok=True)
    tree = traverse_util.unflatten_dict(target, sep=".")
    state = {"version": 3, "optimizer": {"target": tree, "state": {"step": 1000}}}
    (folder / "checkpoint").write_bytes(serialization.to_bytes(state))
    return folder


@pytest.mark.parametrize("layout", ["msgpack", "zarr"])
def test_generates_and_encodes_like_the_same_model(layout: str, tmp_path: Path) -> None:
    _, params = toy_generation.model()
    ours = toy_generation.save_generator(tmp_path / "ours")
    theirs = write(tmp_path / "checkpoint_1000", names_of_t5x(params, False), layout)
    for file in ("tokenizer.json", "config.json"):  # which has this T5's own [CLS] and distances
        (theirs / file).write_bytes((ours / file).read_bytes())
    folders = (ours, theirs)
    (module, loaded), (same, variables) = map(huggingface.load, folders)
    assert module == same
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    asked = [Request("a", "copper is a metal"), Request("b", "how do plants grow")]
    writers = [Generator.load(folder, Decoding(max_tokens=6)) for folder in folders]
    assert writers[0].generate(asked) == writers[1].generate(asked)
    texts = [request.text for request in asked]
    encoders = [Encoder.load(folder, EncoderOptions(pooling="mean")) for folder in folders]
    assert isinstance(encoders[1].module.config.backbone, T5EncoderConfig)
    first, second = (encoder.encode(texts) for encoder in encoders)
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all() and np.ptp(first) > 0


def test_shape_follows_from_arrays(tmp_path: Path) -> None:
    """A T5 v1.1 in bfloat16 without a config.json; and its encoder alone."""
    shape: dict[str, Any] = {"vocab_size": 40, "d_model": 12, "d_kv": 4, "d_ff": 20}
    shape |= {"num_layers": 2, "num_decoder_layers": 1, "num_heads": 3, "num_buckets": 16}
    module = T5(T5Config(**shape, feed_forward="gated-gelu", tied=False, scaled=False))
    params = backbones.new_parameters(module, 1)
    arrays = names_of_t5x(params, True)
    halved = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    loaded, variables = huggingface.load(write(tmp_path / "whole", halved, "zarr"))
    assert loaded == module
    rounded = jax.tree.map(lambda a: np.asarray(a).astype(ml_dtypes.bfloat16), params)
    jax.tree.map(np.testing.assert_array_equal, rounded, variables["params"])
    own = {name: array for name, array in arrays.items() if not name.startswith("decoder")}
    alone = huggingface.load(write(tmp_path / "encoder", own, "msgpack"))[0]
    assert isinstance(alone.config, T5EncoderConfig) and alone.config.num_layers == 2
    with pytest.raises(UserError, match="not the checkpoint of T5X's"):
        huggingface.load(write(tmp_path / "other", {"cls.kernel": np.ones((2, 2))}, "msgpack"))
