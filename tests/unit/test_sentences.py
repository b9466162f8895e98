"""Sentence places: Punkt, paragraphs, doctests; the shipped parameters and learned ones."""

from __future__ import annotations

import itertools
import json

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qac_jax.errors import UserError
from qac_jax.text import sentences


@pytest.fixture(scope="module")
def shipped():
    return sentences.load("shipped")


def test_abbreviations_do_not_end_sentences(shipped):
    text = "Dr. Smith came at 5 p.m. from the U.S. embassy, e.g. by car. He left. Why? Mr. X knows."
    assert shipped.split(text) == [
        "Dr. Smith came at 5 p.m. from the U.S. embassy, e.g. by car.",
        "He left.",
        "Why?",
        "Mr. X knows.",
    ]


def test_paragraphs_end_sentences_and_doctests_go_by_statement(shipped):
    text = "A title\n\nSome text\nover two lines.\n \n>>> f(1)\n2\n>>> for x in y:\n...     g(x)\n3"
    assert shipped.split(text) == [
        "A title",
        "Some text\nover two lines.",
        ">>> f(1)\n2",
        ">>> for x in y:\n...     g(x)\n3",
    ]


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_every_visible_character_is_in_one_sentence(shipped, text):
    assert "".join("".join(shipped.split(text)).split()) == "".join(text.split())
    places = sentences.lines(text)
    assert "".join("".join(text[a:b] for a, b in places).split()) == "".join(text.split())


def test_auto_takes_punkt_tab_where_it_is(monkeypatch, tmp_path):
    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("zorp")
    for name in ("collocations.tab", "ortho_context.tab", "sent_starters.txt"):
        (folder / name).write_text("")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    sentences._named.cache_clear()
    found = sentences.load("auto")
    assert found.name == "NLTK's punkt_tab"
    assert found.split("A zorp. A second. A third.") == ["A zorp. A second.", "A third."]

    monkeypatch.setattr(nltk.data, "path", [])
    sentences._named.cache_clear()
    assert sentences.load("auto").name == "the shipped Punkt parameters"
    with pytest.raises(UserError, match="punkt_tab is not installed; run"):
        sentences.load("punkt_tab")
    sentences._named.cache_clear()


def test_learned_parameters_split_the_text_they_come_from(tmp_path):
    names = ["".join(pair) for pair in itertools.product(("alb", "ber", "cor"), ("ane", "oldo"))]
    text = "\n\n".join(
        f"The old zorp. engine of {one} came slowly through the fields to {other}. "
        f"Then {one} saw many of the people of {other} again at the mill near the sea."
        for one, other in itertools.permutations(names, 2)
    )
    stored = sentences.learn([text])
    assert "zorp" in stored["abbrev_types"]
    assert not set(names) & set(stored["abbrev_types"])
    assert stored == sentences.learn([text])
    path = tmp_path / "sentences.json"
    path.write_text(json.dumps(stored))
    assert len(sentences.load(str(path)).split(text)) == 60


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="neither auto, punkt_tab, shipped nor a file"):
        sentences.load("nltk")
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "x"}')
    with pytest.raises(UserError, match="holds no sentence parameters"):
        sentences.load(str(broken))
