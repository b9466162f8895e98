"""The generators that ship talk of the text that they read; pointer-generators share an encoder."""

import dataclasses
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones, huggingface, names, shared_encoder
from qac_jax.inference.generator import Generator, Request
from qac_jax.models.bert import Bert
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.pointer import PointerConfig, PointerGenerator
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.queries.prompts import PROMPTS


# Written for this test: no generator has read them.
TEXTS = {
    "bees": "Honey bees keep the brood nest at thirty-five degrees. When the hive grows too warm, "
    "workers carry water into it and fan with their wings until the drops have evaporated.",
    "bridge": "The old iron bridge over the Weser was built in 1889 by the engineer Anton Lossow. "
    "After the flood of 1946 it had to be closed, and a ferry took its place for six years.",
    "merge": "Two sorted lists are merged by comparing their first elements and taking the smaller "
    "one away, until one of the lists is empty; the rest of the other is then appended.",
    "fox": "The fox promised the raven a share of the cheese if she would only sing for him. She "
    "opened her beak, the cheese fell into the grass, and the fox ran off with it.",
}
SAMPLES = 8


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{4,}", text.lower()))


def check(said: dict[str, list[str]]) -> None:
    """The words that were said of a text stand there, and rarely in the others."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for name, texts in said.items():
        for found, (other, text) in itertools.product(map(words, texts), TEXTS.items()):
            shares[name == other].append(len(found & words(text)) / max(len(found), 1))
    own, others = (sum(shares[mine]) / len(shares[mine]) for mine in (True, False))
    assert own > 0.3 and own > 3 * others, said


def test_all_that_ships_fits_its_budget() -> None:
    files = [f for f in Path(names.ASSETS).rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 32 * 2**20
    assert not [f for f in files if f.suffix in (".pkl", ".bin", ".pt", ".npz")]


@pytest.mark.slow
def test_qgen_asks_about_the_text() -> None:
    settings = Decoding(samples=SAMPLES, max_tokens=32, top_k=25, top_p=0.8)
    generator = Generator.load(names.shipped_folder("qgen"), settings)
    said = generator.generate([Request(n, t, before="text2query: ") for n, t in TEXTS.items()])
    asked = {n: [s.text for s in texts] for n, texts in zip(TEXTS, said, strict=True)}
    check(asked)
    assert all(len(set(texts)) >= SAMPLES - 1 for texts in asked.values()), asked


@pytest.mark.slow
def test_tqgen_says_words_of_the_text() -> None:
    settings = Decoding(samples=1, max_tokens=64, method="greedy", no_repeat_ngram=2)
    generator = Generator.load(names.shipped_folder("tqgen"), settings)
    requests = {
        (kind, name): Request(name, text, after=prompt.after, max_tokens=prompt.max_tokens)
        for kind, prompt in PROMPTS.items()
        for name, text in TEXTS.items()
    }
    found = generator.generate(list(requests.values()))
    said: dict[str, list[str]] = {name: [] for name in TEXTS}
    for (_, name), texts in zip(requests, found, strict=True):
        said[name].append(texts[0].text)
    check(said)
    assert not any("?" in text for texts in said.values() for text in texts), said
    assert all(len(set(texts)) >= 3 for texts in said.values()), said  # each prompt its own answer


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
