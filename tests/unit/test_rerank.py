"""Scores of a cross-encoder: those of each pair by itself, whatever stands beside it."""

from pathlib import Path

import jax
import numpy as np
import pytest
import toy_retrieval as toy
from hf_encoders import random_variables

from qac_jax.errors import UserError
from qac_jax.formats.runs import ranked
from qac_jax.hub import huggingface
from qac_jax.inference.reranker import Reranker, probability, rerank
from qac_jax.inference.settings import RerankerOptions
from qac_jax.models.bert import Bert, BertConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return toy.save_cross_encoder(tmp_path_factory.mktemp("rerank") / "model")


@pytest.fixture(scope="module")
def reranker(folder: Path) -> Reranker:
    return Reranker.load(folder, RerankerOptions(max_length=32, truncation="longest_first"))


@pytest.fixture(scope="module")
def pairs() -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(0)
    queries = [toy.sentence(rng, 4) for _ in range(3)]
    passages = [toy.sentence(rng, int(rng.integers(2, 40))) for _ in range(20)]
    return [queries[i % 3] for i in range(20)], passages


def test_order_and_neighbours_change_nothing(reranker, pairs) -> None:
    queries, passages = pairs
    heard: list[int] = []
    scores = reranker.score(queries, passages, advance=heard.append)
    assert sum(heard) == len(queries)
    order = np.random.default_rng(1).permutation(len(queries))
    again = reranker.score([queries[i] for i in order], [passages[i] for i in order])
    np.testing.assert_allclose(again, scores[order], rtol=0, atol=1e-5)
    assert reranker.score([], []).shape == (0,)


def test_two_labels_are_log_odds(tmp_path, pairs) -> None:
    model = toy.save_cross_encoder(tmp_path / "two", labels=2)
    two = Reranker.load(model, RerankerOptions(max_length=32))
    queries, passages = pairs[0][:4], pairs[1][:4]
    rows = two.tokenize(queries, passages)  # and padded by hand
    ids, types = (np.zeros((len(rows), 32), np.int32) for _ in range(2))
    for row, pair in enumerate(rows):
        ids[row, : len(pair[0])], types[row, : len(pair[1])] = pair
    lengths = np.array([len(pair) for pair, _ in rows])
    logits = jax.jit(two.module.apply)({"params": two.runner.params}, ids, lengths, types)
    softmax = jax.nn.softmax(logits.astype(np.float32))[:, 1]
    assert np.std(softmax) > 0.01
    np.testing.assert_allclose(probability(two.score(queries, passages)), softmax, atol=1e-6)


def test_a_model_that_reads_scores_reads_them_before_the_query(tmp_path, folder, pairs) -> None:
    queries, passages = pairs[0][:4], pairs[1][:4]
    module, variables = huggingface.load(folder)
    reading = module.clone(reads_scores=True)
    saved = huggingface.save(tmp_path / "told", reading, variables, tokenizer=folder)
    told = Reranker.load(saved, RerankerOptions(max_length=32))
    plain = Reranker.load(folder, RerankerOptions(max_length=32))
    expected = plain.score(
        [f"{n} {query}" for n, query in zip((20, 140, 95, 3), queries, strict=True)], passages
    )
    standing = [0.2, 1.4, 0.949, 0.03]
    np.testing.assert_allclose(told.score(queries, passages, standing), expected, atol=1e-6)
    assert np.abs(told.score(queries, passages, [1.5] * 4) - expected).max() > 1e-4
    texts = {f"p{i}": text for i, text in enumerate(passages)}
    run = {"q": ranked(list(texts), [30.0, 12.0, 7.0, 1.0])}
    found = rerank(run, {"q": "why"}, lambda ids: [texts[name] for name in ids], told)
    asked = [f"{n} why" for n in (250, 40, 23, 3)]
    again = dict(zip(texts, plain.score(asked, passages), strict=True))
    for name, score in zip(found["q"].ids, found["q"].scores, strict=True):
        assert abs(score - again[name]) < 1e-5
    with pytest.raises(UserError, match="reads the score that a first ranking gave"):
        told.score(queries, passages)


def test_what_is_no_cross_encoder_is_refused(tmp_path) -> None:
    bert = Bert(BertConfig(64, 8, 1, 1, 8, 8))
    encoder = huggingface.save(tmp_path / "encoder", bert, random_variables(bert))
    with pytest.raises(UserError, match="Bert, not a cross-encoder"):
        Reranker.load(encoder)
