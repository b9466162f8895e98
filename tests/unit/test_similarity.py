"""Figure 4's figures on vectors whose answer is known, and its plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from qac_jax.evaluation import similarity
from qac_jax.evaluation.similarity import names_of
from qac_jax.formats.queries import Query
from qac_jax.formats.runs import Ranking
from qac_jax.report import plots, tables


def _known() -> similarity.Similarity:
    queries = np.array([[2.0, 0.0], [0.0, 1.0]])
    positives = np.array([[1.0, 0.0], [0.0, 3.0]])
    negatives = [np.array([[3.0, 4.0], [0.5, 0.0]]), np.array([[0.0, -1.0]])]
    return similarity.compare(queries, positives, negatives, [[1, 3], [1]], depth=4)


def test_means_shares_and_ranks() -> None:
    found = _known()
    assert found.queries == 2
    assert found.to_query == pytest.approx((2 + 3) / 2)
    assert found.to_negatives == pytest.approx(((3 + 0.5) / 2 + -3) / 2)
    assert found.nearer == pytest.approx((0.5 + 1) / 2)
    assert found.cosine_to_query == pytest.approx(1.0)
    assert found.cosine_to_negatives == pytest.approx(((0.6 + 1) / 2 - 1) / 2)
    assert found.by_rank == pytest.approx((0.0, None, 0.5, None))


def test_the_plot_is_a_picture_with_a_line_each() -> None:
    plot = plots.similarity({"with <PSR>": _known(), "without": _known()})
    assert plot is not None
    texts = [e.text for e in ElementTree.fromstring(plot.file()).iter() if e.tag.endswith("text")]
    assert "with <PSR>" in texts and "without" in texts


def test_the_table_has_a_line_each() -> None:
    lines = tables.similarities({"a": _known(), "b": _known()}).splitlines()
    assert len(lines) == 4 and lines[2].startswith("| a | 2 |") and "75.0%" in lines[2]


def test_encoders_are_called_by_what_tells_them_apart() -> None:
    assert names_of(["out/pair", "out/dpr/"]) == ["pair", "dpr"]
    grid = ["g/complete/seed_0/pair", "g/without/seed_0/pair"]
    assert names_of(grid) == ["complete", "without"]
    assert names_of(["out/pair"]) == ["pair"]


def test_answers_stand_for_judgements() -> None:
    texts = {"a": "The river Seine.", "b": "A bridge.", "c": "Along the seine", "d": "a hill"}

    class Passages:
        def positions(self, names):
            return [list(texts).index(name) for name in names]

        def __getitem__(self, place):
            return {"text": list(texts.values())[place]}

    passages: Any = Passages()
    ranking = Ranking(("b", "c", "a", "d"), np.zeros(4))
    questions = [
        Query("q1", "which river", ("Seine",)),
        Query("q2", "which hill", ("none",)),  # no passage with an answer: no positive
        Query("q3", "not in the run", ("Seine",)),
    ]
    run = {"q1": ranking, "q2": ranking}
    found = similarity.by_answers(run, questions, passages, depth=3)
    assert found == {"q1": {"c": 1, "a": 1}} and next(iter(found["q1"])) == "c"
    assert not similarity.by_answers(run, questions, passages, depth=1)
