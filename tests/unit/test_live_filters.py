"""Filters of a living index: what fits, what is refused; few rows are all found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_live as toy

from qac_jax.errors import UserError
from qac_jax.live.index import LiveIndex


RECORDS: list[dict[str, Any]] = [
    {"_id": "a", "text": "bee one", "lang": "en", "year": 2019, "tags": ["x", "y"], "open": True},
    {"_id": "b", "text": "bee two", "lang": "de", "year": 2020.5, "columns": {"kind": "k1"}},
    {"_id": "c", "text": "bee three", "lang": "en", "year": "2020", "tags": "y", "open": False},
    {"_id": "d", "text": "bee four", "tags": [], "nothing": None},
    {"_id": "e", "text": "bee five", "lang": "Ü \0 ' \" ; --", "year": -1, "open": 1},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LiveIndex:
    made = toy.live(tmp_path_factory.mktemp("live") / "index", RECORDS[:3])
    made.add(RECORDS[3:])
    return made


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({}, "abcde"),
        ({"lang": "en"}, "ac"),
        ({"lang": ["en", "de"]}, "abc"),
        ({"lang": []}, ""),
        ({"lang": None}, "d"),
        ({"lang": ("!=", "en")}, "bde"),
        ({"lang": {"not in": ["en", "de"]}}, "de"),
        ({"lang": RECORDS[4]["lang"]}, "e"),
        ({"lang": (">=", "e")}, "ace"),
        ({"year": (">=", 2020)}, "b"),
        ({"year": {">": 0, "<": 2020}}, "a"),
        ({"year": "2020"}, "c"),
        ({"year": 2019.0, "lang": "en"}, "a"),
        ({"tags": "y"}, "ac"),
        ({"tags": ["x", "z"]}, "a"),
        ({"tags": {"exists": False}}, "bde"),
        ({"open": True}, "a"),
        ({"open": False}, "c"),
        ({"open": 1}, "e"),
        ({"columns.kind": "k1"}, "b"),
        ({"nothing": None}, "abcde"),
        ({"no such field": 1}, ""),
        ({"text": "bee one"}, ""),
    ],
)
@pytest.mark.parametrize("weight", [0, 0.4, 1])
def test_what_fits(index: LiveIndex, where: Any, ids: str, weight: float) -> None:
    (hits,) = index.search(["bee"], 10, where=where, hybrid=weight)
    assert "".join(sorted(hit.id for hit in hits)) == ids


def test_few_rows_among_many_are_all_found(tmp_path: Path) -> None:
    index = toy.live(tmp_path / "index", toy.records(400))
    for weight in (0, 0.3):
        (hits,) = index.search(["zebra"], 10, where={"year": 2003, "lang": "de"}, hybrid=weight)
        assert len(hits) == 5 and {h.metadata["year"] for h in hits} == {2003}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("en", "is not a filter; give fields with values"),
        ({"year": (">=",)}, r"expected \(operator, value\)"),
        ({"year": ("=>", 3)}, "did you mean|valid names"),
        ({"year": {"in": 3}}, "expected a list of values"),
        ({"year": {"exists": 1}}, "expected true or false"),
        ({"year": [{}]}, "expected a text, a number, true or false"),
        ({"year": (">", None)}, "expected a text, a number, true or false"),
    ],
)
def test_what_is_refused(index: LiveIndex, where: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        index.search(["bee"], where=where)
