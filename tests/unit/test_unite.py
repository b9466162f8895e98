"""Collections as one, with judgements that are hidden; queries of several files, drawn by seed."""

import json
from pathlib import Path
from typing import Any

import pytest
import toy_retrieval

from qac_jax.errors import UserError
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.stages.questions import FILE_NAME, Sample, Unite


def test_questions_are_judged_unjudged_or_of_the_test(tmp_path: Path) -> None:
    folders = [
        toy_retrieval.write_collection(tmp_path / name, 10, queries, train=queries // 2 + 1)
        for name, queries in (("first", 30), ("second", 20))
    ]
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
    fewer = Unite(collections=str(folders[0]), train=10, test=5, seed=1)
    counts = execute(fewer, tmp_path / "fewer").info["questions"]
    assert counts["judged"] + counts["unjudged"] == 10 and counts["test"] == 5
    assert counts["judged"] and counts["unjudged"]
    with pytest.raises(UserError, match="one name"):
        execute(Unite(collections=f"{folders[0]},{folders[0]}"), tmp_path / "out")


def drawn(out: Path, *paths: Path, **settings: Any) -> tuple[set[str], dict[str, Any]]:
    made = execute(Sample(queries=",".join(map(str, paths)), **settings), out)
    found = [json.loads(line) for line in (out / FILE_NAME).read_text().splitlines()]
    texts = {record["text"].rstrip("?").lower() for record in found}
    assert len(texts) == len(found)
    assert {record["_id"].split("/")[0] for record in found} == {path.stem for path in paths}
    return texts, made.info


def test_a_part_by_seed(tmp_path: Path) -> None:
    """ORCAS (a query has a line for every click) and JSON lines, with two questions in common."""
    files = (tmp_path / "orcas.tsv", tmp_path / "squad.jsonl")
    clicks = (f"{n}\tquery {n}\tD{n}{c}\thttp://\n" for n in range(40) for c in range(2))
    files[0].write_text("".join(clicks))
    asked = [{"id": f"q{n}", "question": f"Query {n}?", "answers": ["a"]} for n in range(38, 60)]
    files[1].write_text("".join(json.dumps(one) + "\n" for one in asked))
    texts, info = drawn(tmp_path / "a", *files, count=30, seed=1)
    assert len(texts) == 30 and info["read"] == 62 and info["repeated"] == 2
    assert info["questions"] == {"orcas": 15, "squad": 15}  # not a log's share of the union
    most = drawn(tmp_path / "e", *files, count=50)[1]["questions"]
    assert most == {"orcas": 30, "squad": 20}  # all of the smaller one
    assert drawn(tmp_path / "b", *reversed(files), count=30, seed=1)[0] == texts
    assert drawn(tmp_path / "c", *files, count=30, seed=2)[0] != texts
    assert len(drawn(tmp_path / "d", *files)[0]) == 60
