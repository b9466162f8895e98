"""What PAIR and cross-encoders start from, what they refuse, how titles are read later."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.data.form import Form, form_of, title_and_body
from qac_jax.errors import UserError
from qac_jax.hub import parameters
from qac_jax.inference.encoder import Encoder
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.encoders import CrossEncoder, DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives import pair, towers
from qac_jax.objectives.cross_encoder import Localized, Pointwise
from qac_jax.objectives.objective import Context
from qac_jax.objectives.pair import Pair
from qac_jax.text import tokenizers
from qac_jax.training import train


TOKENIZER = tokenizers.load()
BERT = BertConfig(TOKENIZER.vocab_size, 16, 1, 2, 32, 64)
TIED = DualEncoder(DualEncoderConfig(BERT))
UNTIED = DualEncoder(DualEncoderConfig(BERT, tied=False))
CROSS = CrossEncoder(dataclasses.replace(BERT, pooler=True), labels=2)


def params_of(module: Any, seed: int = 0) -> Any:
    """Random parameters without compiling anything."""
    shapes = jax.eval_shape(
        module.init, jax.random.key(0), np.zeros((1, 2), np.int32), np.ones(1, np.int32)
    )
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: rng.normal(0, 0.4, x.shape).astype(np.float32), nn.unbox(shapes)["params"]
    )


def complete(objective: Any, params: Any) -> set[str]:
    """Names of the objective's parameters that a start does not give."""
    _, _, fresh = train.matching(params, train.abstract_params(objective))
    return set(fresh)


@pytest.mark.parametrize("module", [Bert(BERT), TIED, CROSS], ids=["bert", "dual", "cross"])
@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["one", "two"])
def test_towers_start_from_anything_with_a_bert(module: Any, model: DualEncoder) -> None:
    objective, params = Pair(model, alpha=0.2).start_from(module, params_of(module))
    assert objective.alpha == 0.2 and objective.model.config.tied is model.config.tied
    assert not objective.model.config.backbone.pooler
    assert complete(objective, params) == set()
    if not model.config.tied:
        same = jax.tree.map(np.array_equal, params["query"], params["passage"])
        assert all(jax.tree.leaves(same))


def test_two_towers_do_not_start_one() -> None:
    with pytest.raises(UserError, match="tied=False"):
        Pair(TIED).start_from(UNTIED, params_of(UNTIED))
    kept, params = Pair(UNTIED).start_from(UNTIED, params_of(UNTIED))
    assert complete(kept, params) == set()
    with pytest.raises(UserError, match="cannot start from a int"):
        towers.initialised(TIED, 1, {})


@pytest.mark.parametrize("cls", [Pointwise, Localized])
def test_cross_encoders_start_from_anything_with_a_bert(cls: Any) -> None:
    objective = cls(CrossEncoder(BERT, labels=2))
    output = {"classifier/kernel", "classifier/bias"}
    pooler = {"backbone/pooler/kernel", "backbone/pooler/bias"}
    for module, fresh in ((CROSS, set()), (Bert(BERT), output | pooler), (TIED, output | pooler)):
        found, params = objective.start_from(module, params_of(module))
        assert complete(found, params) == fresh
    one = cls(CrossEncoder(BERT, labels=1))
    found, params = one.start_from(CROSS, params_of(CROSS))
    assert found.model.labels == 1 and complete(found, params) == output
    with pytest.raises(UserError, match="cannot start from"):
        objective.start_from(object(), {})


def test_values_that_mean_nothing() -> None:
    for make, sentence in (
        (lambda: Pair(TIED, alpha=1.5), "alpha = 1.5"),
        (lambda: Pair(TIED, denominator="own_hard"), "own_hard_only"),
        (lambda: Pair(TIED, temperature=0.0), "temperature = 0.0"),
        (lambda: Pointwise(CROSS, adversarial_step=-1.0), "adversarial_step = -1.0"),
        (lambda: Localized(CrossEncoder(BERT, labels=3)), "labels=3"),
    ):
        with pytest.raises(UserError, match=sentence):
            make()
    vectors = jnp.zeros((2, 1, 4))
    for denominator in ("own_hard_only", "hard_from_all_only"):
        with pytest.raises(UserError, match="n_passages to 2"):
            pair.passage_centric(vectors[:, 0], vectors, denominator)


def test_a_small_vocabulary_and_two_towers_are_told(capsys) -> None:
    small = DualEncoder(DualEncoderConfig(dataclasses.replace(BERT, vocab_size=100)))
    with pytest.raises(UserError, match="vocab_size=100"):
        Pair(small).bind(Context(TOKENIZER))
    Pair(TIED).bind(Context(TOKENIZER))
    Pair(UNTIED, alpha=0.0).bind(Context(TOKENIZER))
    assert "tied" not in capsys.readouterr().err
    Pair(UNTIED).bind(Context(TOKENIZER))
    assert "tied=False" in capsys.readouterr().err


def test_a_cross_encoder_remembers_that_it_reads_scores() -> None:
    objective = Pointwise(CROSS)
    reading = {"title": "space", "query_prompt": "", "passage_prompt": "", "scores": True}
    assert objective.bind(Context(reading=reading)).model.reads_scores
    told = objective.bind(Context(reading=reading))
    assert parameters.build_module(parameters.describe_module(told.model), Runtime()).reads_scores
    # One that goes on from it on pairs without scores reads none.
    plain = {name: value for name, value in reading.items() if name != "scores"}
    assert not told.bind(Context(reading=plain)).model.reads_scores


def test_titles_are_read_as_in_training() -> None:
    lengths, settings = {"query": 16, "passages": 24}, {"title_types": True}
    reading = {"title": "separate", "query_prompt": "", "passage_prompt": ""}
    objective = Pair(TIED).bind(Context(lengths=lengths, reading=reading, settings=settings))
    assert objective.model.config.title == "segments"
    plain = Pair(TIED).bind(Context(lengths=lengths, reading=reading))
    assert plain.model.config.title == "separate"
    params = params_of(TIED)
    encoder = Encoder.of(objective.model, params, TOKENIZER)
    records = [
        {"title": "Bees", "text": "They make honey of nectar."},
        {"title": "", "text": "Granite is a stone."},
        {"title": "A long title of many words indeed", "text": "words " * 30},
    ]
    texts = [encoder.passage_text(record) for record in records]
    found = encoder.encode(texts)

    form = Form(**form_of(TOKENIZER), crop="right")
    ids, types = np.zeros((3, 24), np.int32), np.zeros((3, 24), np.int32)
    sizes = np.zeros(3, np.int32)
    for row, raw in enumerate(TOKENIZER.encode_batch(texts)):
        one, kind = title_and_body(np.array(raw, np.int32), form, 24)
        ids[row, : len(one)], types[row, : len(one)], sizes[row] = one, kind, len(one)
    assert sizes[2] == 24 and types.sum(1).min() > 3 and (types[:2, 1] == 0).all()
    expected = jax.jit(TIED.apply)({"params": params}, ids, sizes, types)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    untyped = jax.jit(TIED.apply)({"params": params}, ids, sizes)
    assert np.abs(found - untyped).max() > 1e-2
