"""A teacher's ranking becomes candidates with its scores; weights are averaged with the start's."""

from __future__ import annotations

import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.formats.runs import ranked
from qac_jax.queries.filtering import Filter, is_question
from qac_jax.retrieval.settings import Teaching
from qac_jax.retrieval.teaching import Teacher
from qac_jax.training.averaging import averaged


SCORED = {"q": ranked(("a", "b", "c", "d"), [0.9, 0.8, 0.4, 0.1])}


def test_candidates_are_the_teachers_first_and_those_of_others() -> None:
    other = {"q": ranked(("x", "d", "b"), [3.0, 2.0, 1.0])}
    teacher = Teacher(SCORED, [other], Teaching(count=3, top=1))
    (record,) = teacher.records({"q": "text"}, {"q": {"b": 1}})
    assert record["positives"] == ["b"] and record["positives_scores"] == [0.8]
    assert record["negatives"] == ["a", "x", "d"]
    assert record["negatives_scores"] == [0.9, 0.1, 0.1]  # x is not ranked: the lowest score


def test_queries_that_the_teacher_contradicts_are_dropped() -> None:
    teacher = Teacher(SCORED, [], Teaching(count=3, top=3, consistent=2))
    kept = list(teacher.records({"q": "t", "r": "t"}, {"q": {"c": 1}}))
    assert kept == []
    assert teacher.counts["queries whose passage the teacher ranks lower"] == 1
    assert teacher.counts["queries without a ranking"] == 1
    # Nobody judged it: the teacher's first passage is the positive.
    (record,) = Teacher(SCORED, [], Teaching()).records({"q": "t"}, {})
    assert record["positives"] == ["a"] and record["negatives"] == ["b", "c", "d"]


def test_weights_are_averaged() -> None:
    start, trained = {"w": np.zeros(2, np.float32)}, {"w": np.full(2, 4, np.float32)}
    mean = averaged([start, trained], (0.75, 0.25))["w"]
    assert mean.dtype == np.float32 and mean.tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="different parameters"):
        averaged([start, {"w": np.zeros(3)}], (1, 1))


def test_what_is_no_question_is_dropped() -> None:
    for text in ("what is the name of the ship", "is the sea deep", "in what year was it built"):
        assert is_question(text)
    for text in ("what is", "the old ship", "what is the first first ship", "who is the who is"):
        assert not is_question(text)
    dropped: dict[str, int] = {"not well-formed": 0}
    texts = [{"text": "The old ship"}, {"text": "Who sails the old ship?"}]
    kept = Filter(well_formed=True)(texts, "", dropped)  # type: ignore[arg-type]
    assert [c["text"] for c in kept] == ["Who sails the old ship?"]
    assert dropped["not well-formed"] == 1
