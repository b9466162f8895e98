"""A corpus that leaks on purpose: what is repeated is removed and counted, what is left refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import records
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.stages.collect import Collect
from qac_jax.stages.leaks import Leaks


TRAINING = {"a": ["How do lamps work?", "Who made the lamp?"], "b": ["Where is the river?"]}
VALIDATION = {"c": ["What is a harbour?"]}
# The first is a training question too, in other letters.
TEST = {"d": ["how do LAMPS work"], "e": ["Why do stones sink?"]}


def contexts(folder: Path, made: dict[str, list[str]]) -> str:
    with artifacts.create(folder, kind="contexts", stage="generate") as writer:
        found: Iterable[dict[str, Any]] = (
            {"_id": p, "contexts": [{"text": t, "origin": "g", "score": 0.0} for t in texts]}
            for p, texts in made.items()
        )
        records.write_records(writer, found, "contexts")
    return str(folder)


def passages(folder: Path, names: str) -> str:
    with artifacts.create(folder, kind="passages") as writer:
        records.write_records(writer, ({"_id": n, "title": "", "text": f"{n} text"} for n in names))
    return str(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaks")
    (root / "data").mkdir()
    execute(
        Collect.make(
            collection=str(root / "data"),
            passages=passages(root / "passages", "abcde"),
            contexts=contexts(root / "training", TRAINING),
            validation_contexts=contexts(root / "validation", VALIDATION),
            test_contexts=contexts(root / "test", TEST),
            each=2,
        ),
        root / "questions",
    )
    passages(root / "aside", "cde")
    return root


def check(made: Path, tmp_path: Path, training: str) -> Any:
    return execute(
        Leaks(questions=str(made / "questions"), aside=str(made / "aside"), training=training),
        tmp_path / "leaks",
    )


def test_repeated_questions_are_removed_from_training_and_counted(made: Path) -> None:
    found = artifacts.load(made / "questions")
    texts = {q.text for q in read_queries(found.file("train_queries.jsonl"))}
    assert texts == {"Who made the lamp?", "Where is the river?"}
    assert found.info["train"]["removed"] == {"the same text as a test question": 1}
    assert [found.info[part]["queries"] for part in ("test", "validation")] == [2, 1]
    assert {made["verb"] for made in found.info["made_by"]["test"]} == {"generate"}


def test_contexts_with_a_test_question_are_refused(made: Path, tmp_path: Path) -> None:
    """As they were generated, before repeated questions were removed."""
    with pytest.raises(UserError, match="has the text of the question 'test .*How do lamps work"):
        check(made, tmp_path, str(made / "training"))


def test_contexts_of_a_test_passage_are_refused(made: Path, tmp_path: Path) -> None:
    leaking = contexts(tmp_path / "all", {"b": ["Where is the river?"], "e": ["What sinks?"]})
    with pytest.raises(UserError, match="all has a query of the passage 'e'"):
        check(made, tmp_path, leaking)


def test_groups_with_a_test_question_are_refused(made: Path, tmp_path: Path) -> None:
    with artifacts.create(tmp_path / "groups", kind="groups") as writer:
        group = {"_id": "0", "query_ids": ["b#q0"], "queries": ["why do stones sink"]}
        records.write_records(writer, [group], "groups")
    with pytest.raises(UserError, match="groups has the text of the question 'test "):
        check(made, tmp_path, str(tmp_path / "groups"))


def test_clean_contexts_and_candidates_pass(made: Path, tmp_path: Path) -> None:
    clean = contexts(tmp_path / "clean", {"b": ["Where is the river?"]})
    with artifacts.create(tmp_path / "candidates", kind="negatives") as writer:
        lines = [
            {"_id": "b#q0", "query": "Where is the river?", "positives": ["b"], "negatives": ["e"]},
            {"_id": "log:7", "query": "stones", "positives": ["e"], "negatives": ["a"]},
        ]
        records.write_records(writer, lines, "negatives")
    found = check(made, tmp_path, f"{clean},{tmp_path / 'candidates'}")
    assert json.loads(found.file("leaks.json").read_text()) == {
        "leaks": 0,
        "texts": 5,
        "questions": 3,
        "passages": 3,
    }


def test_a_query_log_trains_and_measures_nothing(made: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "river lamps"}\n')
    stage = Collect.make(
        collection=str(tmp_path),
        passages=str(made / "passages"),
        contexts=str(made / "training"),
        validation_contexts=str(made / "validation"),
        test_contexts=str(made / "test"),
    )
    found = execute(stage, tmp_path / "out")
    assert found.info["test"]["from"] == "g"
    assert "query log without judgements" in found.info["train"]["from"]
    assert "log:1" in {q.id for q in read_queries(found.file("train_queries.jsonl"))}
    assert "measure nothing" in capsys.readouterr().err
