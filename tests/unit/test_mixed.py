"""The mixed folder in tests/mixed: its questions have answers in it, and it stays small."""

import json
from pathlib import Path

import pytest


MIXED = Path(__file__).parents[1] / "mixed"
# An sdist comes without the documents.
pytestmark = pytest.mark.skipif(not MIXED.is_dir(), reason="tests/mixed is only in a checkout")


def test_every_question_has_an_answer_in_the_folder():
    with open(MIXED / "questions.jsonl", encoding="utf-8") as file:
        asked = [json.loads(line) for line in file]
    assert len({one["question"] for one in asked}) == len(asked) == 166
    assert sum(one["answer"][0].startswith("company/") for one in asked) == 84
    for one in asked:
        assert one["quote"] and len(set(one["answer"])) == len(one["answer"]), one
        for name in one["answer"]:
            assert (MIXED / "documents" / name.split("#")[0]).is_file(), name


def test_the_folder_is_small_and_mixed():
    files = [path for path in (MIXED / "documents").rglob("*") if path.is_file()]
    assert len(files) <= 150 and sum(path.stat().st_size for path in files) < 2_500_000
    kinds = {".csv", ".html", ".json", ".md", ".pdf", ".rst", ".txt"}
    assert {path.suffix for path in files} == kinds
