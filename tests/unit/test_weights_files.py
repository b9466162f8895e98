"""Weights files: PyTorch archives without running their pickles, shards, half precision."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from toy_torch_files import Call, Global, archive, pickled, tensor

from qac_jax.errors import UserError
from qac_jax.hub import torch_files, weights


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
