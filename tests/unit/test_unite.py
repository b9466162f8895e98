"""Several collections as one: ids that tell them apart, judgements that are hidden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import toy_retrieval

from qac_jax.errors import UserError
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.stages.questions import Unite


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("unite")
    found = []
    for name, queries in (("first", 30), ("second", 20)):
        folder = toy_retrieval.write_collection(root / name, passages=10, queries=queries)
        lines = (folder / "qrels" / "test.tsv").read_text().splitlines()
        half = len(lines) // 2
        (folder / "qrels" / "train.tsv").write_text("\n".join([lines[0], *lines[half:]]) + "\n")
        (folder / "qrels" / "test.tsv").write_text("\n".join(lines[:half]) + "\n")
        found.append(folder)
    return found


def test_questions_are_judged_unjudged_or_of_the_test(folders, tmp_path) -> None:
    joined = ",".join(map(str, folders))
    artifact = execute(Unite(collections=joined), tmp_path / "union")
    corpus = (tmp_path / "union/corpus.jsonl").read_text()
    ids = [json.loads(line)["_id"] for line in corpus.splitlines()]
    assert artifact.count == len(set(ids)) == 20
    assert {name.split("/")[0] for name in ids} == {"first", "second"}
    questions, judged = {}, {}
    for part in ("judged", "unjudged", "test"):
        questions[part] = {q.id for q in read_queries(tmp_path / f"union/{part}_queries.jsonl")}
        judged[part] = by_query(read_judgements(tmp_path / f"union/{part}.tsv"))
        assert judged[part].keys() == questions[part]
        assert all(set(grades) <= set(ids) for grades in judged[part].values())
    assert questions["judged"] and questions["unjudged"]
    assert not questions["judged"] & questions["unjudged"]
    assert len(questions["judged"] | questions["unjudged"]) == 27
    assert len(questions["test"]) == artifact.info["questions"]["test"] == 23
    for query, grades in judged["test"].items():  # each answered in its own collection
        assert {name.split("/")[0] for name in grades} == {query.split("/")[0]}


def test_fewer_questions_are_a_fair_part(folders, tmp_path) -> None:
    stage = Unite(collections=str(folders[0]), train=10, test=5, seed=1)
    counts = execute(stage, tmp_path / "fewer").info["questions"]
    assert counts["judged"] + counts["unjudged"] == 10 and counts["test"] == 5
    assert counts["judged"] and counts["unjudged"]


def test_two_folders_of_one_name_are_refused(folders, tmp_path) -> None:
    again = tmp_path / "first"
    shutil.copytree(folders[0], again)
    with pytest.raises(UserError, match="one name"):
        execute(Unite(collections=f"{folders[0]},{again}"), tmp_path / "out")
    with pytest.raises(UserError, match="judged=1.0"):
        execute(Unite(collections=str(again), judged=1.0), tmp_path / "out")
