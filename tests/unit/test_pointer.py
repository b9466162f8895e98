"""A pointer-generator: started from an encoder, stored with and without it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, names, shared_encoder
from qac_jax.models.bert import Bert
from qac_jax.models.pointer import PointerConfig, PointerGenerator
from qac_jax.objectives.seq2seq import Seq2Seq


CONFIG = PointerConfig(
    40, 8, 1, 2, 12, 16, num_decoder_layers=1, d_ff=12, dropout=0.0, start_id=2, eos_id=3
)
MODEL = PointerGenerator(CONFIG)


@pytest.fixture(scope="module")
def encoder() -> Any:
    return backbones.new_parameters(Bert(CONFIG.encoder), seed=5)


@pytest.fixture(scope="module")
def params(encoder: Any) -> Any:
    return {**backbones.new_parameters(MODEL, seed=1), "encoder": encoder}


@pytest.fixture
def ships(encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encoder that ships as shipped:reader."""
    folder = tmp_path / "reader"
    huggingface.save(folder, Bert(CONFIG.encoder), {"params": encoder})
    known = names.shipped_folder
    monkeypatch.setattr(
        names, "shipped_folder", lambda name: str(folder) if name == "reader" else known(name)
    )
    return folder


def test_training_starts_from_an_encoder(encoder: Any) -> None:
    _, loaded = Seq2Seq(MODEL).start_from(Bert(CONFIG.encoder), encoder)
    jax.tree.map(np.testing.assert_array_equal, dict(loaded)["encoder"], encoder)
    other = dataclasses.replace(CONFIG.encoder, num_layers=2)
    with pytest.raises(UserError, match="the model to start from has .*num_layers=2"):
        Seq2Seq(MODEL).start_from(Bert(other), encoder)


def test_stored_with_and_without_the_encoder(params: Any, ships: Path, tmp_path: Path) -> None:
    huggingface.save(tmp_path / "whole", MODEL, {"params": params})
    module, loaded = huggingface.load(tmp_path / "whole")
    assert module == MODEL
    jax.tree.map(np.testing.assert_array_equal, loaded["params"], params)
    folder = tmp_path / "m"
    huggingface.save(folder, MODEL, {"params": params}, encoder="shipped:reader", dtype="float16")
    said = json.loads((folder / "config.json").read_text())["encoder_from"]
    assert said["name"] == "shipped:reader" and len(said["sha256"]) == 64
    _, loaded = huggingface.load(folder)
    jax.tree.map(np.testing.assert_array_equal, loaded["params"]["encoder"], params["encoder"])
    # Another encoder than the one it was trained with is refused.
    other = backbones.new_parameters(Bert(CONFIG.encoder), seed=6)
    shutil.rmtree(ships)
    huggingface.save(ships, Bert(CONFIG.encoder), {"params": other})
    with pytest.raises(UserError, match="trained with another shipped:reader"):
        huggingface.load(folder)
    with pytest.raises(UserError, match="so the encoder was trained; store it too"):
        huggingface.save(tmp_path / "n", MODEL, {"params": params}, encoder="shipped:reader")


def test_only_what_ships_may_be_named(params: Any, tmp_path: Path) -> None:
    for said in ("x", {"name": "/etc", "sha256": ""}):
        with pytest.raises(UserError, match="is not an encoder that ships"):
            shared_encoder.tensors({"encoder_from": said}, tmp_path, [])
