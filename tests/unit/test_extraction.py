"""Extracted queries: spans, their salience by BM25 and by models, titles, anchors, keywords."""

import math
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_generation

from qac_jax.errors import UserError
from qac_jax.inference.generator import Generator
from qac_jax.inference.likelihood import Likelihood
from qac_jax.inference.settings import LIKELIHOODS, LikelihoodOptions
from qac_jax.models.decoding.settings import Decoding
from qac_jax.models.t5 import shift_right
from qac_jax.queries import structure
from qac_jax.queries.extraction import (
    Bm25Salience,
    Extraction,
    SpanSampling,
    Statistics,
    best,
    encoder_salience,
)
from qac_jax.text import tokenizers


WORDS = [f"w{number}" for number in range(60)]


def documents(count: int = 40) -> list[str]:
    rng = np.random.default_rng(0)
    odds = 1 / np.arange(1, 61)
    return [
        " ".join(
            f"{word.upper()}," if rng.random() < 0.2 else word
            for word in rng.choice(WORDS, int(rng.integers(5, 80)), p=odds / odds.sum())
        )
        for _ in range(count)
    ]


def test_spans_are_runs_of_the_document_within_bounds() -> None:
    counts = set()
    for number, text in enumerate(documents()):
        whole, spans = SpanSampling().candidates(f"p{number}", text, seed=1)
        assert len(spans) == 16 and whole == " ".join(text.split())
        for span in spans:
            counts.add(len(span.split()))
            assert f" {span} " in f" {whole} "
            assert min(4, len(text.split())) <= len(span.split()) <= 16
    assert counts == set(range(4, 17))
    again = SpanSampling().candidates("p0", documents()[0], seed=1)
    assert again != SpanSampling().candidates("p0", documents()[0], seed=2)
    long = " ".join(map(str, range(1000)))
    window = SpanSampling().candidates("long", long)[0].split()
    assert len(window) == 256 and window != long.split()[:256]
    assert not SpanSampling().candidates("short", "only three words")[1]
    with pytest.raises(
        UserError, match="spans = 1000000000; expected at least 1 and at most 10000"
    ):
        SpanSampling(spans=10**9)  # a recipe of a stranger's


def okapi(corpus: list[str], document: str, span: str, k1: float = 1.2, b: float = 0.75) -> float:
    """BM25 as the formula stands, with rank_bm25's floor of a quarter of the mean weight."""

    def tokens(text: str) -> list[str]:
        return re.sub(r"[^\w\s]|_", " ", text.lower()).split()

    texts = [tokens(text) for text in corpus]
    vocabulary = {word for text in texts for word in text}
    raw = {}
    for word in vocabulary:
        df = sum(word in text for text in texts)
        raw[word] = math.log((len(texts) - df + 0.5) / (df + 0.5))
    floor = 0.25 * sum(raw.values()) / len(raw)
    idf = {word: value if value >= 0 else floor for word, value in raw.items()}
    mean = sum(len(text) for text in texts) / len(texts)
    said, score = tokens(document), 0.0
    for word in tokens(span):
        tf = said.count(word)
        score += idf.get(word, 0.0) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(said) / mean))
    return score


def test_bm25_is_the_plain_formula() -> None:
    corpus = documents()
    statistics = Statistics()
    for part in (corpus[:15], corpus[15:]):  # counted in parts, as the stage does
        statistics.add(Statistics.of(part))
    spans = [SpanSampling().candidates(str(n), text)[1] for n, text in enumerate(corpus[:8])]
    found = Bm25Salience(statistics)(corpus[:8], spans)
    for document, of, scores in zip(corpus, spans, found, strict=False):
        np.testing.assert_allclose(scores, [okapi(corpus, document, s) for s in of], rtol=1e-12)
    common = max(statistics.frequency.values())
    assert common > statistics.documents / 2, "no common word: a weak test"


def test_the_best_different_spans() -> None:
    spans = ["b", "a", "a", "c", "d"]
    scores = np.array([1.0, 3.0, 3.0, -np.inf, 1.0])
    assert best(spans, scores, 1) == [("a", 3.0)]
    assert best(spans, scores, 9) == [("a", 3.0), ("b", 1.0), ("d", 1.0)]


def test_first_lines_as_titles() -> None:
    text = "\n  \n  Two words\nThis line says something more.\n"
    for settings, expected in ((("any",), "Two words"), (("sentence", 3), "This line says")):
        rule = structure.TitleRule(*settings)
        assert rule.of({"text": text}) == expected
        assert rule.of({"text": text, "title": "A  given\ntitle"}) == "A given title"
        # A later passage of a document does not begin with its title.
        assert rule.of({"text": text, "position": 3}) == ""


def test_anchors_are_told_once() -> None:
    passage = {
        "_id": "p",
        "text": "Of graphs: trees, forests,\nand what (an edge\nset) is. See also scipy.forest.",
        "anchors": [["Graph (mathematics)", "graphs"], ["Tree", "Trees"], ["Or", "or"]],
        "phrases": ["Graphs", "edge  set"],
    }
    (found,) = Extraction("anchor").contexts([passage], None)
    assert [c["text"] for c in found] == ["graphs", "Trees", "edge set"]
    assert found[0] == {"text": "graphs", "origin": "doc_anchor", "score": None}


TWO_DOCUMENTS = ["The kestrel hovers over a field of mice.", "A copper lamp stands in the hall."]
SPANS = [["kestrel", "over a field of mice", "The kestrel hovers"], ["A copper lamp"]]


@pytest.fixture(scope="module")
def generator() -> Generator:
    module, params = toy_generation.model()
    return Generator.of(
        module, params, tokenizers.load(), Decoding(), devices=jax.local_devices()[:1]
    )


def alone(generator: Generator, document: str, span: list[int]) -> np.ndarray:
    """log p of every token of one span, nothing padded or beside it."""
    module, params = generator.module, {"params": generator.runner.params}
    ids = jnp.array([generator.tokenizer.backend.encode(document).ids])
    target = jnp.array([span])
    shifted = shift_right(target, module.config.start_id)
    logits = jax.jit(module.apply)(params, ids, jnp.array([ids.shape[1]]), shifted)
    return np.asarray(jax.nn.log_softmax(logits)[0, np.arange(len(span)), target[0]])


@pytest.mark.slow
def test_the_likelihood_of_a_span_is_that_of_its_tokens_alone(generator: Generator) -> None:
    found = {
        kind: Likelihood(generator, LikelihoodOptions(kind))(TWO_DOCUMENTS, SPANS)
        for kind in LIKELIHOODS
    }
    encode, pad = generator.tokenizer.encode, generator.tokenizer.pad_id
    longest = max(len(encode(span)) for of in SPANS for span in of)
    assert [len(scores) for scores in found["sum"]] == [3, 1]
    for place, (document, spans) in enumerate(zip(TWO_DOCUMENTS, SPANS, strict=True)):
        for number, span in enumerate(spans):
            ids = encode(span)
            each = alone(generator, document, ids)
            padded = alone(generator, document, ids + [pad] * (longest - len(ids)))
            expected = {"sum": each.sum(), "mean": each.mean(), "padded": padded.sum()}
            for kind, value in expected.items():
                np.testing.assert_allclose(found[kind][place][number], value, rtol=2e-5)


def test_span_times_document() -> None:
    def encode(texts: list[str], side: str) -> np.ndarray:
        sign = 1.0 if side == "passage" else 2.0
        return np.array([[sign * text.count(c) for c in "abc"] for text in texts], np.float32)

    encoder: Any = SimpleNamespace(encode=encode)
    found = encoder_salience(encoder, ["aab", "ccc"], [["a", "b"], ["c"]])
    assert [scores.tolist() for scores in found] == [[4.0, 2.0], [6.0]]


LIGHTHOUSE = {
    "title": "Lighthouses",
    "text": "The keeper of the northern lighthouse lit the great lamp every evening before dusk.",
}


def test_keywords_of_each_passage() -> None:
    extraction = Extraction("keywords", keep=3, seed=1)
    given = [{"_id": name, **LIGHTHOUSE} for name in "ab"]
    first, second = extraction.contexts(given, None)
    assert first == next(iter(extraction.contexts(given, None))) != second and len(first) == 3
    assert {c["origin"] for c in first} == {"keywords"}
    for query in structure.keywords(LIGHTHOUSE, 40, np.random.default_rng(0)):
        beginning = max((b for b in structure.BEGINNINGS if query.startswith(b)), default="")
        words = query.removesuffix("lighthouses").rstrip("?").removeprefix(beginning).split()
        assert set(words) <= set(re.findall(r"[\w'-]+", LIGHTHOUSE["text"].lower())), query
    assert structure.keywords({"text": "the of"}, 4, np.random.default_rng(0)) == []
