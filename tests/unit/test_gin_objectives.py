"""The gin files of models and of the first objectives build what they say they build."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import pytest

from qac_jax import config
from qac_jax.errors import UserError
from qac_jax.stages.train import Train


GIN = Path(__file__).parents[2] / "gin_configs"
MODELS = sorted(path.stem for path in (GIN / "models").glob("*.gin"))
# Layers, width, pieces: Turc et al. 2019 (tiny, mini, small), Devlin et al. 2019 (base); the small
# ones have our vocabulary of 16,384 pieces.
BERTS = {
    "bert_tiny": (2, 128, 16384),
    "bert_mini": (4, 256, 16384),
    "bert_small": (4, 512, 16384),
    "bert_base": (12, 768, 30522),
    "roberta_base": (12, 768, 50265),
    "xlm_roberta_base": (12, 768, 250002),
    "distilbert_base": (6, 768, 30522),
    "electra_base": (12, 768, 30522),
    "mpnet_base": (12, 768, 30527),
}
# Rows of the position and token type embeddings, where they are not a BERT's 512 + 2: Liu et al.
# 2019, Sanh et al. 2019, Song et al. 2020.
ROWS = {
    "roberta_base": 514 + 1,
    "xlm_roberta_base": 514 + 1,
    "distilbert_base": 512,
    "mpnet_base": 514,
}
# What is beside a BERT's: MPNet's scores of 32 buckets of distances for 12 heads.
MORE = {"mpnet_base": 32 * 12}
# Encoder layers, decoder layers, width, heads x width of a head, feed-forward width, heads, pieces:
# Raffel et al. 2020 (small, base).
T5S = {
    "t5_micro": (4, 3, 192, 192, 768, 6, 16512),
    "t5_tiny": (4, 4, 256, 256, 1024, 4, 16512),
    "t5_small": (6, 6, 512, 512, 2048, 8, 32128),
    "t5_base": (12, 12, 768, 768, 3072, 12, 32128),
}


def size(model: str) -> int:
    """The number of parameters, counted by hand; a BERT's with its masked-language-model head."""
    if model == "modernbert_base":  # Warner et al. 2024: gated MLPs, no biases but of words
        layer = 4 * 768**2 + 3 * 768 * 1152 + 2 * 768
        return 50368 * 768 + 768 + 22 * layer - 768 + 768 + 768**2 + 768 + 50368
    if model == "t5_encoder_base":  # as that of t5_base
        return 32128 * 768 + 32 * 12 + 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768) + 768
    if model in BERTS:
        layers, width, pieces = BERTS[model]
        embeddings = (pieces + ROWS.get(model, 512 + 2) + 2) * width
        layer = 4 * (width * width + width) + 8 * width * width + 5 * width + 4 * width
        head = width * width + 3 * width + pieces
        return embeddings + layers * layer + head + MORE.get(model, 0)
    if model == "pointer_minilm":
        square, width = 384**2, 384
        reads = (30522 + 512 + 2 + 2) * width + 6 * (12 * square + 13 * width)
        writes = 2 * (8 * square + 2 * width * 1536 + 3 * width) + width + 32 * 12
        memory = 3 * square + 2 * width
        return reads + writes + memory + 4 * (square + width) + 2 * width + 1 + 30522
    encoder, decoder, width, inner, wide, heads, pieces = T5S[model]
    attention, feed_forward = 4 * width * inner, 2 * width * wide
    first = encoder * (attention + feed_forward + 2 * width)
    second = decoder * (2 * attention + feed_forward + 3 * width)
    return pieces * width + 2 * 32 * heads + first + second + 2 * width


def built(*files: str) -> Train:
    train = config.Config(files=files).build(Train, check=False)
    assert isinstance(train, Train)
    return train


def parameters(objective: Any) -> int:
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_every_model_has_its_papers_size() -> None:
    for model in MODELS:
        encoder = "backbone.chosen" in (GIN / "models" / f"{model}.gin").read_text()
        objective = "mlm" if encoder else "span_corruption"
        if model == "t5_encoder_base":  # which predicts no masked words
            objective = "finetune"
        if model == "pointer_minilm":
            objective = "seq2seq_pointer"
        train = built(f"objectives/{objective}.gin", f"models/{model}.gin")
        assert parameters(train.objective) == size(model), model


def test_runs_have_the_verb_of_their_objective() -> None:
    for name in ("augtriever", "pair", "finetune", "cross_encoder", "cross_encoder_localized"):
        train = built(f"objectives/{name}.gin")
        assert train.verb == ("pretrain" if name in ("augtriever", "pair") else "finetune")
    wrong = dataclasses.replace(train, examples="out/examples", objective=train.optimizer)
    with pytest.raises(UserError, match="a Optimizer, which is not an objective"):
        wrong.check()
