"""The heat map of systems over groups of collections."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from qac_jax.errors import UserError
from qac_jax.evaluation.benchmarks import BEIR14, GROUPS, Suite
from qac_jax.report.heatmap import Heatmap


def whole(offset: float) -> Suite:
    return Suite({name: offset + number / 100 for number, name in enumerate(BEIR14)})


def test_groups_are_means_of_their_members() -> None:
    table = Heatmap.from_suites({"a": whole(0.1), "b": whole(0.2)})
    assert table.columns == tuple(GROUPS)  # no MS MARCO, and no set by itself
    argument = table.columns.index("argument")
    numbers = {name: number for number, name in enumerate(BEIR14)}
    expected = 0.1 + (numbers["arguana"] + numbers["webis-touche2020"]) / 200
    assert table.figures["a"][argument] == pytest.approx(expected)
    assert set(table.shades()["a"]) == {0.0} and set(table.shades()["b"]) == {1.0}


def test_own_collections_and_incomplete_groups() -> None:
    systems = {
        "crop <1>": Suite({"tales": 0.5, "scifact": 0.6}),
        "topics": Suite({"tales": 0.7, "npl": 0.2}),
    }
    table = Heatmap.from_suites(systems)
    assert table.columns == ("tales", "SciFact", "npl")
    assert table.figures["topics"] == (0.7, None, 0.2)
    assert table.shades()["crop <1>"] == (0.0, 1.0, None)
    lines = table.text().splitlines()
    assert lines[2].split() == ["crop", "<1>", "50.0", "60.0", "–"]
    picture = ElementTree.fromstring(table.svg())
    said = ["".join(node.itertext()) for node in picture.iter() if node.tag.endswith("title")]
    assert said == [
        "crop <1>, tales: 50.0", "crop <1>, SciFact: 60.0", "crop <1>, npl: –",
        "topics, tales: 70.0", "topics, SciFact: –", "topics, npl: 20.0",
    ]  # fmt: skip


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(UserError, match="at least one system"):
        Heatmap.from_suites({})
    with pytest.raises(UserError, match="no group"):
        Heatmap.from_suites({"a": Suite({})})
