"""A new model starts with the word vectors of a larger one: told apart, neighbours kept."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.hub import parameters, weights, word_vectors
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.t5 import T5, T5Config
from qac_jax.objectives.finetune import Finetune
from qac_jax.objectives.seq2seq import Seq2Seq
from qac_jax.pipeline.stage import execute
from qac_jax.stages.train import Train
from qac_jax.text import tokenizers


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{a}{b}" for a in "bcdfghjklm" for b in "aeiou"]
THEIRS = [*SPECIAL, *WORDS, *(f"##{w}" for w in WORDS)]
OWN = [*SPECIAL, *reversed(WORDS), "baca", "##ba", "ẞ"]
WIDTH, ROWS = 16, 70


def tokenizer(pieces: list[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.wordpiece({piece: i for i, piece in enumerate(pieces)})
    return tokenizers.Tokenizer(backend, tokenizers.special_tokens_of(pieces, {}), "toy")


def vectors() -> np.ndarray:
    """Words of one consonant are neighbours; all share a mean and one loud direction."""
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.standard_normal((10, 40)), 5, 0)
    words = groups + 0.05 * rng.standard_normal((50, 40))
    found = np.concatenate([np.zeros((5, 40)), words, words + 0.1])
    return found + 5.0 + 20.0 * rng.standard_normal((105, 1)) * np.eye(40)[0]


def cosines(table: np.ndarray) -> np.ndarray:
    rows = table / np.linalg.norm(table, axis=1, keepdims=True)
    return rows @ rows.T


def made(spread: float = 1.0) -> np.ndarray:
    theirs, own = tokenizer(THEIRS), tokenizer(OWN)
    return word_vectors.table(vectors(), theirs, own, (ROWS, WIDTH), spread, seed=0)


def test_neighbours_stay_and_the_rest_is_told_apart():
    found = cosines(made())
    place = {piece: i for i, piece in enumerate(OWN)}
    same = [found[place[f"{a}a"], place[f"{a}e"]] for a in "bcdfghjklm"]
    other = [found[place[f"{a}a"], place["ma"]] for a in "bcdfghjkl"]
    assert np.mean(same) > 0.5
    assert np.abs(np.mean(other)) < 0.2  # neither the mean nor the loud direction is left


def test_a_piece_that_is_not_theirs_has_the_mean_of_what_they_cut_it_into():
    theirs, own = tokenizer(THEIRS), tokenizer(OWN)
    found, known = word_vectors._looked_up(vectors(), theirs, own, ROWS)
    ids = theirs.encode("baca")
    assert len(ids) == 2
    np.testing.assert_allclose(found[OWN.index("baca")], vectors()[ids].mean(0))
    np.testing.assert_array_equal(found[OWN.index("##ba")], vectors()[THEIRS.index("##ba")])
    assert known[5:57].all()
    assert not known[:5].any() and not known[57:].any()  # special, what they do not know, spare


def test_vectors_that_do_not_fit_are_refused(tmp_path: Path):
    theirs, own = tokenizer(THEIRS), tokenizer(OWN)
    with pytest.raises(UserError, match="width 40 are too narrow for an embedding of width 39"):
        word_vectors.table(vectors(), theirs, own, (ROWS, 39), 1.0, seed=0)
    with pytest.raises(UserError, match="has 105 pieces and there are 90 vectors"):
        word_vectors.table(vectors()[:90], theirs, own, (ROWS, WIDTH), 1.0, seed=0)
    weights.write_file(tmp_path / weights.SAFETENSORS, {"a.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match="has no word vectors"):
        word_vectors.of_folder(tmp_path)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Train:
    folder = tmp_path_factory.mktemp("words")
    examples = toy_examples.tokenized(folder, "seq2seq")
    own = tokenizers.load(toy_examples.vocabulary(folder))
    theirs = folder / "theirs"
    own.save(theirs)
    vectors = np.random.default_rng(1).standard_normal((own.vocab_size, 40)).astype(np.float32)
    weights.write_file(
        theirs / weights.SAFETENSORS, {"bert.embeddings.word_embeddings.weight": vectors}
    )
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 32}
    sizes |= {"num_layers": 1, "num_decoder_layers": 1, "vocab_size": own.vocab_size}
    config = T5Config(**sizes, eos_id=own.special("sep"), start_id=own.special("cls"))
    return Train.make(
        objective=Seq2Seq(T5(config), start="copying"),
        examples=str(examples.path),
        words=str(theirs),
        steps=1,
        batch_size=8,
        learning_rate=1e-9,
        kind="seq2seq",
    )


@pytest.mark.slow
def test_training_starts_with_them(stage: Train, tmp_path: Path):
    artifact = execute(stage, tmp_path / "trained")
    found = parameters.load(artifact)[1]["params"]["shared"]["embedding"]
    np.testing.assert_allclose(found, expected(stage, artifact, 1.0), atol=1e-6)
    assert artifact.record["inputs"].keys() == {"examples", "words"}


def expected(stage: Train, artifact: artifacts.Artifact, spread: float) -> np.ndarray:
    own = tokenizers.load(str(artifact.path / "tokenizer"))
    theirs, vectors = tokenizers.load(stage.words), word_vectors.of_folder(stage.words)
    shape = (stage.objective.model.config.vocab_size, 32)
    return word_vectors.table(vectors, theirs, own, shape, spread, seed=0)


def test_only_a_new_model_takes_them(stage: Train, tmp_path: Path):
    retriever = Finetune(DualEncoder(DualEncoderConfig(BertConfig(vocab_size=100))))
    with pytest.raises(UserError, match="for a new encoder or T5, and this is a DualEncoder"):
        execute(dataclasses.replace(stage, objective=retriever), tmp_path / "refused")
    with pytest.raises(UserError, match="at most one of --init, --words"):
        execute(dataclasses.replace(stage, init=stage.words), tmp_path / "refused")
