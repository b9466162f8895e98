"""QExt: spans, BM25's salience against a plain statement of it, ranking, structure."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.queries import structure
from qac_jax.queries.extraction import (
    Bm25Salience,
    Extraction,
    SpanSampling,
    Statistics,
    best,
    words,
)


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
        found = SpanSampling().candidates(f"p{number}", text, seed=1)
        assert len(found.spans) == 16 and found.text == " ".join(text.split())
        for span in found.spans:
            counts.add(len(span.split()))
            assert f" {span} " in f" {found.text} "
            assert min(4, len(text.split())) <= len(span.split()) <= 16
    assert counts == set(range(4, 17))
    again = SpanSampling().candidates("p0", documents()[0], seed=1)
    assert again == SpanSampling().candidates("p0", documents()[0], seed=1)
    assert again != SpanSampling().candidates("p0", documents()[0], seed=2)
    long = " ".join(map(str, range(1000)))
    window = SpanSampling().candidates("long", long).text.split()
    assert len(window) == 256 and window != long.split()[:256]
    assert not SpanSampling().candidates("short", "only three words").spans


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
    spans = [SpanSampling().candidates(str(n), text).spans for n, text in enumerate(corpus[:8])]
    found = Bm25Salience(statistics)(corpus[:8], spans)
    for document, of, scores in zip(corpus, spans, found, strict=False):
        np.testing.assert_allclose(scores, [okapi(corpus, document, s) for s in of], rtol=1e-12)
    assert any(weight < 0 for weight in _raw(statistics).values()), "no common word: a weak test"
    # Words that the corpus or the document does not have say nothing.
    assert Bm25Salience(statistics)(["w1 w2"], [["nowhere", "w30 w40"]])[0].tolist() == [0, 0]
    assert words("It's _UP_-to.date") == ["it", "s", "up", "to", "date"]


def _raw(statistics: Statistics) -> dict[str, float]:
    n = statistics.documents
    return {w: math.log((n - c + 0.5) / (c + 0.5)) for w, c in statistics.frequency.items()}


def test_statistics_survive_a_file(tmp_path) -> None:
    found = Statistics.of(documents())
    found.save(tmp_path / "statistics.json")
    assert Statistics.load(tmp_path / "statistics.json") == found
    assert found.words == sum(len(words(text)) for text in documents())
    with pytest.raises(UserError, match="no text"):
        Bm25Salience(Statistics.of(["?!", ""]))


def test_the_best_different_spans() -> None:
    spans = ["b", "a", "a", "c", "d"]
    scores = np.array([1.0, 3.0, 3.0, -np.inf, 1.0])
    assert best(spans, scores, 1) == [("a", 3.0)]
    assert best(spans, scores, 9) == [("a", 3.0), ("b", 1.0), ("d", 1.0)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (structure.TitleRule("any"), "Two words"),
        (structure.TitleRule("sentence"), "This line says something more."),
        (structure.TitleRule("none"), ""),
        (structure.TitleRule("sentence", title_words=3), "This line says"),
    ],
)
def test_first_lines_as_titles(rule: structure.TitleRule, expected: str) -> None:
    text = "\n  \n  Two words\nThis line says something more.\n"
    assert rule.of({"text": text}) == expected
    assert rule.of({"text": text, "title": "A  given\ntitle"}) == "A given title"
    # A later passage of a document does not begin with its title.
    assert rule.of({"text": text, "position": 3}) == ""


def test_anchors_are_told_once() -> None:
    passage = {
        "text": "Of graphs: trees, forests,\nand what (an edge\nset) is. See also scipy.forest.",
        "anchors": [
            ["Graph (mathematics)", "graphs"],
            ["Tree", "Trees"],
            ["Or", "or"],
            ["N", "n.x"],
        ],
        "phrases": ["Graphs", "edge  set"],
        "see_also": ["scipy.forest", "Forest theory"],
    }
    assert structure.anchors(passage) == ["graphs", "Trees", "n.x", "edge set", "scipy.forest"]
    extraction = Extraction("anchor")
    contexts = list(extraction.contexts([{"_id": "p", **passage}], None))
    assert [c["origin"] for c in contexts[0]] == ["doc_anchor"] * 5
    assert contexts[0][0] == {"text": "graphs", "origin": "doc_anchor", "score": None}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpanSampling(spans=0), "spans = 0"),
        (lambda: SpanSampling(shortest=9, longest=4), "shortest=9, longest=4"),
        (lambda: SpanSampling(context_words=8), "context_words=8"),
        (lambda: structure.TitleRule("first"), "first_line"),
        (lambda: structure.TitleRule(title_words=0), "title_words = 0"),
        (lambda: Bm25Salience(Statistics.of(["a b"]), b=2), "b=2"),
    ],
)
def test_what_does_not_fit_is_refused(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_every_draw_has_spans_of_its_own() -> None:
    passage = {"_id": "p", "text": documents()[0], "title": ""}
    salience = Bm25Salience(Statistics.of(documents()))

    def spans(draws: int) -> list[str]:
        (found,) = Extraction("bm25", draws=draws).contexts([passage], salience)
        return [context["text"] for context in found]

    assert spans(4)[:1] == spans(1)
    assert len(spans(4)) == 4 and len(set(spans(4))) > 1
