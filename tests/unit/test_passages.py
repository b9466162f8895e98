"""Text into sentences, spans and passages: nothing is lost, nothing is too long."""

import nltk
import pytest
import tokenizers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qac_jax.errors import UserError
from qac_jax.formats.documents import Document, Passage, Section
from qac_jax.text import sentences, tokenizers
from qac_jax.text.passages import Cutter, Cutting


# Sentence places: Punkt, paragraphs, doctests; the shipped parameters and learned ones.


@pytest.fixture(scope="module")
def shipped():
    return sentences.load("shipped")


def test_sentences_end_at_full_stops_paragraphs_and_statements(shipped):
    text = "Dr. Smith came at 5 p.m. from the U.S. embassy, e.g. by car. He left. Why? Mr. X knows."
    assert shipped.split(text) == [
        "Dr. Smith came at 5 p.m. from the U.S. embassy, e.g. by car.",
        "He left.",
        "Why?",
        "Mr. X knows.",
    ]
    text = "A title\n\nSome text\nover two lines.\n \n>>> f(1)\n2\n>>> for x in y:\n...     g(x)\n3"
    assert shipped.split(text) == [
        "A title",
        "Some text\nover two lines.",
        ">>> f(1)\n2",
        ">>> for x in y:\n...     g(x)\n3",
    ]


def test_without_punkt_tab_auto_is_what_ships(monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [])
    sentences.load.cache_clear()
    assert sentences.load("auto").name == "the shipped Punkt parameters"
    with pytest.raises(UserError, match="punkt_tab is missing"):
        sentences.load("punkt_tab")
    sentences.load.cache_clear()


def plain(text: str) -> str:
    return "".join(text.split())


# Cutting: nothing is lost or doubled, nothing is too long, nothing depends on the neighbours.


words = st.sampled_from(
    ["The", "mill", "ground", "barley.", "Then", "it", "stopped!", "Why?", "e.g.", "Dr.", "x=1;",
     "\n", "\n\n", ">>> f(x)", "\u200b", "naïve", "東京", "한국어", "pneumonoultramicroscopic" * 3,
     "a.b/c-d_e" * 20, "\t", "é" * 130, "…"]
)  # fmt: skip


texts = st.one_of(st.lists(words, max_size=120).map(" ".join), st.text(max_size=300))


@pytest.fixture(scope="module")
def wordpiece():
    return tokenizers.load()


@pytest.fixture(scope="module")
def unigram():
    """A vocabulary whose pieces reach over spaces: lengths of parts do not add up."""
    letters = [(chr(c), -5.0) for c in range(32, 127)]
    pieces = [("<unk>", 0.0), *letters, ("mill ground", -2.0), ("it stop", -2.0), (" the ", -1.0)]
    backend = hf.Tokenizer(hf.models.Unigram(pieces, unk_id=0, byte_fallback=False))
    return tokenizers.Tokenizer(backend, {"unk": "<unk>"}, "toy unigram")


@settings(max_examples=120, deadline=None)
@example("word " * 900, 8, 0, 0)
@example("x" * 5000, 8, 0, 0)
@example("\u200b\u200b", 8, 0, 0)
@given(texts, st.integers(8, 64), st.integers(0, 3), st.integers(0, 9))
def test_no_text_is_lost_or_doubled_and_none_is_too_long(
    wordpiece, unigram, shipped, text, limit, kind, seed
):
    cut, tokenizer = "lines" if kind == 1 else "sentences", unigram if kind == 2 else wordpiece
    cutting = Cutting(cut=cut, max_tokens=limit, short_span_probability=0.3)
    (found,) = Cutter(cutting, tokenizer, "shipped", seed=seed).cut([text], "d")
    if sum(tokenizer.count([text])):
        assert plain("".join(found)) == plain(text)
    else:
        assert found == []
    assert all(count <= limit for count in tokenizer.count(found))
    assert all(piece == piece.strip() and piece for piece in found)


def test_records_keep_identity_titles_and_what_a_passage_contains(wordpiece, shipped):
    document = Document(
        id="mill",
        title="Tide mill",
        sections=(
            Section("", "A mill by the sea. It ground barley."),
            Section("History", "It was built in 1793. A storm broke the dam."),
        ),
        meta={
            "url": "u",
            "phrases": ["barley", "storm"],
            "anchors": [["Dam_(water)", "dam"], ["Sea", "sea"]],
            "parts": ({}, {"title": "Mill history", "summary": "built"}),
        },
    )
    cutter = Cutter(Cutting(cut="sentences", short_span_probability=0), wordpiece, "shipped")
    first, second = cutter.records(document)
    assert first == {
        "_id": "mill#0", "doc": "mill", "position": 0, "title": "Tide mill",
        "text": "A mill by the sea. It ground barley.", "url": "u",
        "phrases": ["barley"], "anchors": [["Sea", "sea"]],
    }  # fmt: skip
    assert second == {
        "_id": "mill#1", "doc": "mill", "position": 1, "title": "Mill history",
        "text": "It was built in 1793. A storm broke the dam.", "url": "u", "summary": "built",
        "section": "History", "phrases": ["storm"], "anchors": [["Dam_(water)", "dam"]],
    }  # fmt: skip


def test_passages_that_come_as_such_stay_whole_unless_told(wordpiece, shipped):
    body = "One two three four five six seven eight. " * 5
    document = Document(
        id="d", title="T", passages=(Passage("p7", "", body), Passage("p9", "U", ""))
    )
    whole = list(Cutter(Cutting(max_tokens=16), wordpiece, "shipped").records(document))
    kept = [(r["_id"], r["title"], r["text"]) for r in whole]
    assert kept == [("p7", "T", body), ("p9", "U", "")]
    assert whole == list(Cutter(Cutting(cut="none")).records(document))
    cutting = Cutting(cut="sentences", max_tokens=16, short_span_probability=0)
    pieces = list(Cutter(cutting, wordpiece, "shipped").records(document))
    assert [r["_id"] for r in pieces] == [f"d#{i}" for i in range(5)]
