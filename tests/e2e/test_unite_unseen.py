"""`qac step unite`: collections as one, with hidden judgements, or only the documents of tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qac_jax import cli
from qac_jax.artifacts import load


HEAD = "query-id\tcorpus-id\tscore\n"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """Three documents: d0 is asked about in training, d1 in the test, d2 in both."""
    folder = tmp_path_factory.mktemp("data") / "birds"
    (folder / "qrels").mkdir(parents=True)
    documents: list[dict[str, Any]] = [
        {
            "_id": f"d{d}",
            "title": f"Bird {d}",
            "passages": [{"_id": f"d{d}p{p}", "text": f"Bird {d} sings {p}."} for p in range(2)],
        }
        for d in range(3)
    ]
    passages = [{**p, "title": d["title"]} for d in documents for p in d["passages"]]
    queries = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(40)]
    for name, rows in (("documents", documents), ("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked: dict[str, list[str]] = {"train": [], "test": []}
    for n in range(10):
        asked["train"].append(f"q{n}\td0p0\t1\n")
        asked["train"].append(f"q{n + 10}\td2p0\t1\n")
        asked["test"].append(f"q{n + 20}\td1p{n % 2}\t1\n")
        asked["test"].append(f"q{n + 30}\td2p1\t1\n")
    for split, judged in asked.items():
        (folder / "qrels" / f"{split}.tsv").write_text(HEAD + "".join(judged))
    return folder


def test_training_questions_are_judged_or_hidden_and_tests_stay_tests(birds, tmp_path):
    assert cli.main(["unite", "--folders", str(birds), "--out", str(tmp_path / "u")]) == 0
    found = {
        part: lines(tmp_path / "u" / f"{part}_queries.jsonl")
        for part in ("judged", "unjudged", "test")
    }
    assert len(lines(tmp_path / "u" / "corpus.jsonl")) == 6
    assert len(found["judged"]) + len(found["unjudged"]) == 20
    assert found["judged"] and found["unjudged"]
    assert {q["_id"] for q in found["test"]} == {f"birds/q{n}" for n in range(20, 40)}


def test_unseen_documents_are_those_that_only_tests_ask_about(birds, tmp_path):
    arguments = ["unite", "--folders", str(birds), "--documents", "unseen"]
    assert cli.main([*arguments, "--out", str(tmp_path / "u")]) == 0
    corpus = {record["_id"] for record in lines(tmp_path / "u" / "corpus.jsonl")}
    assert corpus == {"birds/d1p0", "birds/d1p1"}  # d2 has training questions too
    asked = [
        q["_id"]
        for part in ("judged", "unjudged")
        for q in lines(tmp_path / "u" / f"{part}_queries.jsonl")
    ]
    assert load(tmp_path / "u").info["questions"]["test"] == 0
    assert set(asked) >= {f"birds/q{n}" for n in range(20, 30)}
    for part in ("judged", "unjudged"):
        rows = (tmp_path / "u" / f"{part}.tsv").read_text().splitlines()[1:]
        assert {row.split("\t")[1] for row in rows} <= corpus
