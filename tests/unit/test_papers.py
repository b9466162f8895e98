"""The papers' tables: every row has a recipe that builds or a reason, and the pages are as made."""

from __future__ import annotations

from pathlib import Path

import pytest

from qac_jax import papers
from qac_jax.cli import main
from qac_jax.errors import UserError


PAGES = Path(__file__).parents[2] / "docs" / "papers"


@pytest.mark.parametrize(
    "name", ["qac", *(pytest.param(n, marks=pytest.mark.slow) for n in ("pair", "augtriever"))]
)
def test_pages_are_made_of_the_recipes(name: str) -> None:
    made = papers.page(name)
    assert (PAGES / f"{name}.md").read_text() == made, f"qac recipes --paper {name} > its page"


@pytest.mark.parametrize("name", papers.names())
def test_every_row_has_a_recipe_or_a_reason(name: str) -> None:
    for table in papers.read(name).tables:
        for row in table.rows:
            assert row.recipe or row.verb or row.differs, row.name
            assert len(row.figures) in (0, len(table.columns)), row.name
            assert len(table.measured) in (0, 1, len(table.columns)), table.name


def test_all_tables_are_there() -> None:
    found = {name: [table.name for table in papers.read(name).tables] for name in papers.names()}
    assert found["qac"] == [*(f"Table {number}" for number in (1, 2, 3, 4, 5)), "Cost"]
    assert set(found["pair"]) >= {"Table 1", "Table 2", "Table 3", "Table 5", "Figure 4"}
    assert set(found["augtriever"]) >= {
        *(f"Table {number}" for number in (1, 2, 3, 4, 5)),
        "Table 6, BEIR",
    }


def test_one_sentence_for_another_name() -> None:
    with pytest.raises(UserError, match="'dpr' is not one of the papers"):
        papers.page("dpr")


def test_the_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "page", lambda name: f"the page of {name}\n")
    assert main(["recipes", "--paper", "pair"]) == 0
    assert capsys.readouterr().out == "the page of pair\n"
