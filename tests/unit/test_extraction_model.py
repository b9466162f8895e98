"""Salience by models: likelihoods against one span at a time, padding, encoders."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.inference.generator import Generator
from qac_jax.inference.likelihood import Likelihood
from qac_jax.inference.settings import LikelihoodOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.t5 import T5, T5Config, shift_right
from qac_jax.queries.extraction import EncoderSalience
from qac_jax.text import tokenizers


DOCUMENTS = ["The kestrel hovers over a field of mice.", "A copper lamp stands in the hall."]
SPANS = [["kestrel", "over a field of mice", "The kestrel hovers"], ["A copper lamp"]]


@pytest.fixture(scope="module")
def generator() -> Generator:
    tokenizer = tokenizers.load()
    end = tokenizer.special("eos" if tokenizer.has("eos") else "sep")
    config = T5Config(
        tokenizer.vocab_size, 16, 8, 32, num_layers=1, num_decoder_layers=2, num_heads=2, eos_id=end
    )
    module = T5(config)
    ids = jnp.zeros((1, 2), jnp.int32)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), ids, jnp.ones(1, jnp.int32), ids))
    return Generator.of(
        module, params["params"], tokenizer, Decoding(), devices=jax.local_devices()[:1]
    )


def alone(generator: Generator, document: str, span: list[int]) -> np.ndarray:
    """log p of every token of one span, nothing padded or beside it."""
    tokenizer, module = generator.tokenizer, generator.module
    ids = jnp.array([tokenizer.backend.encode(document).ids])
    target = jnp.array([span])
    logits = jax.jit(module.apply)(
        {"params": generator.runner.params},
        ids,
        jnp.array([ids.shape[1]]),
        shift_right(target, module.config.start_id),
    )
    return np.asarray(jax.nn.log_softmax(logits)[0, np.arange(len(span)), target[0]])


def test_the_likelihood_of_a_span_is_that_of_its_tokens_alone(generator: Generator) -> None:
    found = {
        kind: Likelihood(generator, LikelihoodOptions(kind))(DOCUMENTS, SPANS)
        for kind in ("sum", "mean")
    }
    assert [len(scores) for scores in found["sum"]] == [3, 1]
    for place, (document, spans) in enumerate(zip(DOCUMENTS, SPANS, strict=True)):
        for number, span in enumerate(spans):
            each = alone(generator, document, generator.tokenizer.encode(span))
            np.testing.assert_allclose(found["sum"][place][number], each.sum(), rtol=2e-5)
            np.testing.assert_allclose(found["mean"][place][number], each.mean(), rtol=2e-5)


def test_a_model_over_two_devices_finds_the_same(generator: Generator) -> None:
    shared = Generator.of(
        generator.module,
        jax.tree.map(np.asarray, generator.runner.params),
        generator.tokenizer,
        Decoding(),
        devices=jax.local_devices()[:4],
        partitions=2,
    )
    expected, found = (Likelihood(each)(DOCUMENTS, SPANS) for each in (generator, shared))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_released_counts_padding_as_words(generator: Generator) -> None:
    found = Likelihood(generator, LikelihoodOptions("released"))(DOCUMENTS, SPANS)
    encode, pad = generator.tokenizer.encode, generator.tokenizer.pad_id
    longest = max(len(encode(span)) for of in SPANS for span in of)
    for place, (document, spans) in enumerate(zip(DOCUMENTS, SPANS, strict=True)):
        for number, span in enumerate(spans):
            ids = encode(span)
            said = alone(generator, document, ids + [pad] * (longest - len(ids)))
            np.testing.assert_allclose(found[place][number], said.sum(), rtol=2e-5)
    # The batch decides: with a longer span beside them, the same spans score lower.
    more = Likelihood(generator, LikelihoodOptions("released"))(
        [*DOCUMENTS, "Other words."],
        [*SPANS, ["a much longer span of words than all of the others"]],
    )
    assert all((a > b).all() for a, b in zip(found, more, strict=False))


def test_a_span_without_tokens_is_never_the_best(generator: Generator) -> None:
    found = Likelihood(generator)(["Some words."], [["", "words"]])[0]
    assert found[0] == -np.inf and np.isfinite(found[1])
    assert [len(scores) for scores in Likelihood(generator)(["short"], [[]])] == [0]


def test_long_texts_are_cut(generator: Generator) -> None:
    salience = Likelihood(generator, LikelihoodOptions(document_tokens=8, span_tokens=3))
    words = " ".join(["field"] * 50)
    both = salience([words, words + " of mice"], [["lamp in the hall"], ["lamp in the garden"]])
    np.testing.assert_allclose(both[0], both[1], rtol=1e-6)


class Fixed:
    """An encoder of one dimension a letter."""

    def encode(self, texts: list[str], side: str) -> np.ndarray:
        sign = 1.0 if side == "passage" else 2.0
        return np.array([[sign * text.count(c) for c in "abc"] for text in texts], np.float32)


def test_span_times_document() -> None:
    encoder: Any = Fixed()
    found = EncoderSalience(encoder)(["aab", "ccc"], [["a", "b"], ["c"]])
    assert [scores.tolist() for scores in found] == [[4.0, 2.0], [6.0]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="likelihood='average'"):
        LikelihoodOptions("average")
    with pytest.raises(UserError, match="span_tokens=0"):
        LikelihoodOptions(span_tokens=0)
