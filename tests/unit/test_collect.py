"""collect: training and test questions of folders that hold all, some or none of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import judgements, queries, records
from qac_jax.pipeline.stage import execute
from qac_jax.stages.collect import Collect
from qac_jax.stages.prepare import Prepare


PASSAGES = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with test judgements, its passages, and two generated queries for each."""
    root = tmp_path_factory.mktemp("collect")
    toy.write_collection(root / "data", PASSAGES, 12)
    execute(
        Prepare.make(format="beir", documents=str(root / "data"), cut="none"), root / "passages"
    )
    with artifacts.create(root / "contexts", kind="contexts") as writer:
        found = (
            {
                "_id": f"p{i}",
                "contexts": [{"text": f"{n} of p{i}", "origin": "g", "score": 0} for n in range(2)],
            }
            for i in range(PASSAGES)
        )
        records.write_records(writer, found, "contexts")
    return root


def folder(made: Path, tmp_path: Path, *splits: str, asked: bool = True) -> Path:
    """The collection with its test judgements as these splits."""
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    shutil.copy(made / "data" / "corpus.jsonl", data)
    if asked:
        shutil.copy(made / "data" / "queries.jsonl", data)
    for split in splits:
        shutil.copy(made / "data" / "qrels" / "test.tsv", data / "qrels" / f"{split}.tsv")
    return data


def collect(made: Path, data: Path, *, contexts: bool = True, **options: Any) -> Any:
    given = str(made / "contexts") if contexts else ""
    stage = Collect.make(
        collection=str(data), passages=str(made / "passages"), contexts=given, **options
    )
    return execute(stage, data.parent / "out")


def asked(artifact: Any, split: str) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    texts = queries.read_queries(artifact.file(f"{split}_queries.jsonl"))
    grades = judgements.by_query(judgements.read_judgements(artifact.file(f"{split}.tsv")))
    return {query.id: query.text for query in texts}, grades


def test_what_is_judged_is_taken(made: Path, tmp_path: Path) -> None:
    made_here = collect(made, folder(made, tmp_path, "train", "test"), contexts=False)
    for split in ("train", "test"):
        texts, grades = asked(made_here, split)
        known = judgements.by_query(
            judgements.read_judgements(made / "data" / "qrels" / "test.tsv")
        )
        assert grades == known and texts.keys() == known.keys()
        assert made_here.info[split]["from"] == f"qrels/{split}.tsv"


def test_generated_queries_stand_in(made: Path, tmp_path: Path) -> None:
    """Documents only: no passage asks in training and in the test."""
    found = collect(made, folder(made, tmp_path, asked=False), held_out=0.3, each=2)
    learned, tested = asked(found, "train"), asked(found, "test")
    passages = [{p for of in grades.values() for p in of} for _, grades in (learned, tested)]
    assert not passages[0] & passages[1]
    assert passages[0] | passages[1] == {f"p{i}" for i in range(PASSAGES)}
    assert 5 < len(tested[0]) < 35
    assert len(learned[0]) == 2 * len(passages[0])
    assert learned[0]["p0#q1" if "p0" in passages[0] else "p1#q1"].startswith("1 of")
    assert found.info["test"]["from"] == "generated"


def test_only_test_questions_are_judged(made: Path, tmp_path: Path) -> None:
    found = collect(made, folder(made, tmp_path, "dev"))
    assert found.info["train"] == {"from": "generated", "queries": PASSAGES}
    assert found.info["test"] == {"from": "qrels/dev.tsv", "queries": 12}


def test_a_part_of_the_training_questions_is_kept(made: Path, tmp_path: Path) -> None:
    found = collect(made, folder(made, tmp_path, "train"), contexts=False, held_out=0.4)
    learned, tested = asked(found, "train")[0], asked(found, "test")[0]
    assert not learned.keys() & tested.keys() and len(learned) + len(tested) == 12
    assert learned and tested


def test_both(made: Path, tmp_path: Path) -> None:
    found = collect(made, folder(made, tmp_path, "train", "test"), train="both")
    assert found.info["train"]["queries"] == 12 + PASSAGES
    assert found.info["train"]["from"] == "qrels/train.tsv and generated"


@pytest.mark.parametrize(
    ("splits", "options", "sentence"),
    [
        ((), {}, "no judged train queries.*give --contexts"),
        (("train",), {"train": "generated"}, "needs generated queries"),
        (("test",), {"train": "judged"}, "no judged train queries"),
        (("train", "test"), {"held_out": 1.0}, "not a share"),
        (("train", "test"), {"each": 0, "train": "judged"}, "at least one query"),
    ],
)
def test_what_is_missing_is_said(
    splits: Any, options: Any, sentence: str, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        collect(made, folder(made, tmp_path, *splits), contexts=False, **options)


def test_strangers_are_told(made: Path, tmp_path: Path, capsys: Any) -> None:
    data = folder(made, tmp_path, "train", "test")
    file = data / "qrels" / "train.tsv"
    file.write_text(file.read_text() + "nobody\tp1\t1\nq0\tnowhere\t1\n")
    found = collect(made, data, contexts=False)
    assert "1 of 13 queries" in capsys.readouterr().err
    assert "nowhere" not in json.dumps(asked(found, "train")[1])
    file.write_text("query-id\tcorpus-id\tscore\nnobody\tp1\t1\n")
    shutil.rmtree(data.parent / "out")
    with pytest.raises(UserError, match="ids are the same"):
        collect(made, data, contexts=False)


@pytest.mark.parametrize(
    ("splits", "parts"),
    [
        (("train", "test", "dev"), ("qrels/test.tsv", "qrels/dev.tsv", "qrels/train.tsv and g")),
        (("dev",), ("qrels/dev.tsv", "g", "g")),
        (("train",), ("33% of qrels/train.tsv", "g", "the rest of qrels/train.tsv and g")),
    ],
)
def test_judged_questions_are_kept_for_test_and_validation(
    splits: Any, parts: Any, made: Path, tmp_path: Path
) -> None:
    data = folder(made, tmp_path, *splits)
    if "dev" in splits and "test" in splits:  # other texts, or they would be removed
        lines = (data / "queries.jsonl").read_text().splitlines()
        copies = [json.loads(line) for line in lines]
        more = [
            {"_id": f"{s}{q['_id']}", "text": f"{q['text']} {s}"} for q in copies for s in splits
        ]
        (data / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in more))
        for split in splits:
            file = data / "qrels" / f"{split}.tsv"
            file.write_text(file.read_text().replace("\nq", f"\n{split}q"))
    given = str(made / "contexts")
    found = collect(
        made, data, held_out=0.4, validation_contexts=given, test_contexts=given, each=2, at_most=50
    )
    names = ("test", "validation", "train")
    assert tuple(found.info[name]["from"] for name in names) == parts
    questions = {name: asked(found, name)[0] for name in names}
    assert not questions["test"].keys() & questions["train"].keys()
    generated = [name for name in questions["train"] if "#q" in name]
    assert 0 < len(generated) <= 50 and len(questions["train"]) >= len(generated)


@pytest.fixture(scope="module")
def docstrings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions of a package, whole and without their summary lines, with a query for each."""
    root = tmp_path_factory.mktemp("docstrings")
    options = "kinds=function sections=first"
    whole = Prepare(format="python_docs", packages="optax", options=options)
    execute(whole, root / "passages")
    known = Prepare(
        format="python_docs", packages="optax", options=f"{options} held_out=only summary=drop"
    )
    execute(known, root / "known")
    with artifacts.create(root / "contexts", kind="contexts") as writer:
        found = (
            {"_id": p["_id"], "contexts": [{"text": "a query", "origin": "g", "score": 0}]}
            for p in records.Records(artifacts.load(root / "passages"))
        )
        records.write_records(writer, found, "contexts")
    return root


def test_summary_lines_ask_and_held_out_modules_are_only_tested(
    docstrings: Path, tmp_path: Path
) -> None:
    passages = {p["_id"]: p for p in records.Records(artifacts.load(docstrings / "passages"))}
    assert {p["kind"] for p in passages.values()} == {"function"}
    stage = Collect.make(
        passages=str(docstrings / "passages"),
        contexts=str(docstrings / "contexts"),
        summaries=True,
    )
    made = execute(stage, tmp_path / "out")
    train, test = asked(made, "train"), asked(made, "test")
    held = {name for name, p in passages.items() if p["held_out"]}
    assert held and len(test[0]) and len(train[0])
    assert all(set(of) <= held for of in test[1].values())
    assert not any(held & set(of) for of in train[1].values())
    assert "a query" in train[0].values() and "a query" not in test[0].values()


def test_known_items_stand_without_their_summary(docstrings: Path, tmp_path: Path) -> None:
    passages = {p["_id"]: p for p in records.Records(artifacts.load(docstrings / "known"))}
    made = execute(
        Collect.make(passages=str(docstrings / "known"), summaries=True, train="none"),
        tmp_path / "out",
    )
    assert not asked(made, "train")[0]
    texts, judged = asked(made, "test")
    assert texts and all(passages[name]["held_out"] for of in judged.values() for name in of)
    for name, text in texts.items():
        for passage in judged[name]:
            assert text not in " ".join(passages[passage]["text"].split())


def test_questions_come_from_one_place(docstrings: Path, tmp_path: Path) -> None:
    passages = str(docstrings / "passages")
    with pytest.raises(UserError, match="collect needs queries"):
        execute(Collect.make(passages=passages), tmp_path / "out")
    with pytest.raises(UserError, match="give one of them"):
        both = Collect.make(passages=passages, collection=str(tmp_path), summaries=True)
        execute(both, tmp_path / "out")
    with pytest.raises(UserError, match="train='none'"):
        execute(
            Collect.make(passages=passages, collection=str(tmp_path), train="none"),
            tmp_path / "out",
        )
