"""Queries by rule: words of the passage, the same for the same seed."""

from __future__ import annotations

import numpy as np

from qac_jax.queries import structure
from qac_jax.queries.extraction import Extraction


PASSAGE = {
    "_id": "a",
    "title": "Lighthouses",
    "text": "The keeper of the northern lighthouse lit the great lamp every evening before dusk. "
    "Ships returning from distant islands followed its beam into the harbour.",
}


def test_they_are_words_of_one_sentence_behind_a_question_word() -> None:
    found = structure.keywords(PASSAGE, 40, np.random.default_rng(0))
    assert len(found) == len(set(found)) == 40
    sentences = [set(s.lower().strip(".").split()) for s in PASSAGE["text"].split(". ")]
    questions = 0
    for query in found:
        rest = query
        if query.endswith("?"):
            questions += 1
            beginning = max((b for b in structure.BEGINNINGS if query.startswith(b)), key=len)
            rest = query[len(beginning) : -1]
        words = rest.removesuffix("lighthouses").split()
        assert any(set(words) <= of for of in sentences), query
        assert len([w for w in words if w not in structure.COMMON]) >= 2
    assert 15 <= questions <= 32  # six of ten


def test_what_has_too_few_words_gives_none() -> None:
    for text in ("", "the of", "harbour"):
        assert structure.keywords({"text": text}, 4, np.random.default_rng(0)) == []


def test_extraction_gives_each_passage_its_own() -> None:
    extraction = Extraction("keywords", keep=3, seed=1)
    other = {**PASSAGE, "_id": "b"}
    first, second = extraction.contexts([PASSAGE, other], None)
    again, _ = extraction.contexts([PASSAGE, other], None)
    assert first == again != second and len(first) == 3
    assert {c["origin"] for c in first} == {"keywords"}
