"""Figure 4's figures on vectors whose answer is known, and its plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from qac_jax.evaluation import similarity
from qac_jax.evaluation.similarity import names_of
from qac_jax.report import analyses


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
    plot = analyses.similarity_svg({"with <PSR>": _known(), "without": _known()})
    root = ElementTree.fromstring(plot)
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 3  # two encoders and the query's line
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "with <PSR>" in texts and "without" in texts
    points = [tuple(map(float, p.split(","))) for p in lines[1].attrib["points"].split()]
    assert len(points) == 2 and points[0][0] < points[1][0]
    # The first negative lies 2.5 below the query's line, the other one 2.
    assert points[0][1] > points[1][1]


def test_the_table_has_a_line_each() -> None:
    lines = analyses.similarity_table({"a": _known(), "b": _known()}).splitlines()
    assert len(lines) == 4 and lines[2].startswith("| a | 2 |") and "75.0%" in lines[2]


def test_encoders_are_called_by_what_tells_them_apart() -> None:
    assert names_of(["out/pair", "out/dpr/"]) == ["pair", "dpr"]
    grid = ["g/complete/seed_0/pair", "g/without/seed_0/pair"]
    assert names_of(grid) == ["complete", "without"]
    assert names_of(["out/pair"]) == ["pair"]
