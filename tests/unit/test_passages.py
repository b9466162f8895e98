"""Cutting: nothing is lost or doubled, nothing is too long, nothing depends on the neighbours."""

from __future__ import annotations

import dataclasses

import pytest
import tokenizers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qac_jax.formats.documents import Document, Passage, Section
from qac_jax.text import sentences, tokenizers
from qac_jax.text.passages import Cutter, Cutting


words = st.sampled_from(
    ["The", "mill", "ground", "barley.", "Then", "it", "stopped!", "Why?", "e.g.", "Dr.", "x=1;",
     "\n", "\n\n", ">>> f(x)", "\u200b", "naïve", "東京", "한국어", "pneumonoultramicroscopic" * 3,
     "a.b/c-d_e" * 20, "\t", "é" * 130, "…"]
)  # fmt: skip
texts = st.one_of(st.lists(words, max_size=120).map(" ".join), st.text(max_size=300))


def plain(text: str) -> str:
    return "".join(text.split())


@pytest.fixture(scope="module")
def wordpiece():
    return tokenizers.load()


@pytest.fixture(scope="module")
def splitter():
    return sentences.load("shipped")


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
    wordpiece, splitter, text, limit, kind, seed
):
    cut = "lines" if kind == 1 else "sentences"
    cutting = Cutting(cut=cut, max_tokens=limit, short_span_probability=0.3)
    (found,) = Cutter(cutting, wordpiece, splitter, seed=seed).cut([text], "d")
    if sum(wordpiece.count([text])):
        assert plain("".join(found)) == plain(text)
    else:
        assert found == []
    assert all(count <= limit for count in wordpiece.count(found))
    assert all(piece == piece.strip() and piece for piece in found)


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(8, 64))
def test_limit_holds_where_lengths_do_not_add_up(unigram, splitter, text, limit):
    assert not unigram.splits_at_spaces
    (found,) = Cutter(Cutting(cut="sentences", max_tokens=limit), unigram, splitter).cut([text], "")
    assert plain("".join(found)) == plain(text)
    assert all(count <= limit for count in unigram.count(found))


@settings(max_examples=60, deadline=None)
@example("barley. \u200b", 8, 1)
@example("\u200b The mill. It stopped! \u200b Why? \u200b", 8, 4)
@given(texts, st.integers(8, 64), st.integers(1, 20))
def test_minimum_size(wordpiece, splitter, text, limit, least):
    cutting = Cutting(cut="sentences", max_tokens=limit, min_tokens=min(least, limit))
    cutter = Cutter(cutting, wordpiece, splitter)
    (found,) = cutter.cut([text], "d")
    counts = wordpiece.count(found)
    assert all(min(least, limit) <= count <= limit for count in counts)
    if not cutter.too_short and counts:
        assert plain("".join(found)) == plain(text)


def test_overshooting_rule_keeps_sentences_whole(wordpiece, splitter):
    text = "One two three four five. " * 40
    cutting = Cutting(cut="sentences", max_tokens=20, overshoot=True, short_span_probability=0)
    (found,) = Cutter(cutting, wordpiece, splitter).cut([text], "d")
    assert set(wordpiece.count(found[:-1])) == {24}
    cutting = dataclasses.replace(cutting, overshoot=False)
    (found,) = Cutter(cutting, wordpiece, splitter).cut([text], "d")
    assert set(wordpiece.count(found[:-1])) == {18}


def test_only_seed_and_document_decide(wordpiece, splitter):
    text = "The wheel turned for the last time. Today it is a museum. " * 60
    cutter = Cutter(Cutting(cut="sentences", max_tokens=40), wordpiece, splitter)
    first = cutter.cut([text], "a")
    cutter.cut([text], "b")
    assert cutter.cut([text], "a") == first
    other = Cutter(Cutting(cut="sentences", max_tokens=40), wordpiece, splitter, seed=1)
    assert cutter.cut([text], "b") != first != other.cut([text], "a")


def test_records_keep_identity_titles_and_what_a_passage_contains(wordpiece, splitter):
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
    cutter = Cutter(Cutting(cut="sentences", short_span_probability=0), wordpiece, splitter)
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


def test_passages_that_come_as_such_stay_whole_unless_told(wordpiece, splitter):
    body = "One two three four five six seven eight. " * 5
    document = Document(
        id="d", title="T", passages=(Passage("p7", "", body), Passage("p9", "U", ""))
    )
    whole = list(Cutter(Cutting(max_tokens=16), wordpiece, splitter).records(document))
    assert [(r["_id"], r["title"], r["text"]) for r in whole] == [
        ("p7", "T", body),
        ("p9", "U", ""),
    ]
    assert whole == list(Cutter(Cutting(cut="none")).records(document))
    cutting = Cutting(cut="sentences", max_tokens=16, short_span_probability=0)
    pieces = list(Cutter(cutting, wordpiece, splitter).records(document))
    assert [r["_id"] for r in pieces] == [f"d#{i}" for i in range(5)]


def test_without_cutting_sections_are_passages():
    document = Document(id="d", sections=(Section("", "a b"), Section("H", " "), Section("", "c")))
    records = list(Cutter(Cutting(cut="none")).records(document))
    assert [(r["_id"], r["text"]) for r in records] == [("d#0", "a b"), ("d#1", "c")]
