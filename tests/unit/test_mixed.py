"""The mixed folder in tests/mixed: its questions have answers in it, and it stays small."""

import csv
from pathlib import Path

import pytest


MIXED = Path(__file__).parents[1] / "mixed"
# An sdist comes without the documents.
pytestmark = pytest.mark.skipif(not MIXED.is_dir(), reason="tests/mixed is only in a checkout")


def test_every_question_has_an_answer_in_the_folder():
    with open(MIXED / "questions.tsv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    company = [row for row in rows if row["answer"].startswith("company/")]
    assert len({row["question"] for row in rows}) == len(rows) == 166
    assert len(company) == 84
    for row in rows:
        also = [name for name in row["also"].split("|") if name]
        assert row["answer"] not in also and row["quote"], row
        for name in (row["answer"], *also):
            assert (MIXED / "documents" / name.split("#")[0]).is_file(), name


def test_the_folder_is_small_and_mixed():
    files = [path for path in (MIXED / "documents").rglob("*") if path.is_file()]
    assert len(files) <= 150 and sum(path.stat().st_size for path in files) < 2_500_000
    kinds = {".csv", ".html", ".json", ".md", ".pdf", ".rst", ".txt"}
    assert {path.suffix for path in files} == kinds
