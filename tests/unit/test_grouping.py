"""`qac group`: groups of similar passages, the teacher's scores, and how they are trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
import toy_retrieval as toy

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats.records import Records
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import mining
from qac_jax.retrieval.hybrid import Hybrid
from qac_jax.stages import bm25, embed, group, index, prepare
from qac_jax.stages import hybrid as hybrids
from qac_jax.stages.tokenize import Tokenize


def test_every_row_is_in_a_group_with_its_like() -> None:
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), 10)
    vectors = (10 * np.eye(4)[kinds] + rng.normal(size=(40, 4))).astype(np.float32)
    groups = mining.similar_groups(vectors, 10, np.random.default_rng(1))
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    # Of four kinds; drawn at random nearly every group would have them all.
    assert np.mean([len(set(kinds[rows].tolist())) for rows in groups]) <= 2.5
    again = mining.similar_groups(vectors, 10, np.random.default_rng(1))
    assert all((a == b).all() for a, b in zip(groups, again, strict=True))


@pytest.mark.parametrize("count", [3, 10, 11, 25])
def test_groups_are_of_one_size(count: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    groups = mining.similar_groups(vectors, 10, np.random.default_rng(0))
    assert {len(rows) for rows in groups} == {min(10, count)}
    assert all(len(set(rows.tolist())) == len(rows) for rows in groups)
    assert set(np.concatenate(groups).tolist()) == set(range(count))


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouping")
    data = toy.write_collection(folder / "toys")
    toy.save_encoder(folder / "encoder")
    execute(prepare.Prepare.make(documents=str(data), format="beir"), folder / "passages")
    passages = str(folder / "passages")
    execute(embed.Embed(encoder=str(folder / "encoder"), passages=passages), folder / "vectors")
    execute(index.Index(vectors=str(folder / "vectors")), folder / "index")
    execute(bm25.Bm25(passages=passages), folder / "bm25")
    joined = hybrids.Hybrid.make(index=str(folder / "index"), bm25=str(folder / "bm25"), weight=0.4)
    execute(joined, folder / "hybrid")
    names = records(folder / "passages").ids()
    found = [
        {
            "_id": name,
            "contexts": [{"text": toy.sentence(np.random.default_rng(n + i), 3)} for i in range(3)],
        }
        for n, name in enumerate(list(names)[:-2])
    ]
    toy_examples._write(folder / "contexts", "contexts", found)
    return folder


def records(folder: Path) -> Records:
    return Records(artifacts.load(folder))


def made(road: Path, out: Path, **settings: Any) -> list[dict[str, Any]]:
    stage = group.Group(
        passages=str(road / "passages"),
        contexts=str(road / "contexts"),
        teacher=str(road / "hybrid"),
        **settings,
    )
    return list(Records(execute(stage, out)))


def test_scores_are_those_of_the_hybrid_index(road: Path, tmp_path: Path) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    places = {text: name for name, text in texts_of(road).items()}
    groups = made(road, tmp_path / "out", size=8, per_passage=2)
    assert len(groups) == 5 and all(len(g["passages"]) == 8 for g in groups)
    for of in groups[:2]:
        scores, rows = teacher.find(of["queries"], 40)
        for number in range(len(of["queries"])):
            fused = {teacher.ids[r]: s for r, s in zip(rows[number], scores[number], strict=True)}
            expected = [fused[places[p["title"], p["text"]]] for p in of["passages"]]
            np.testing.assert_allclose(of["scores"][number], expected, atol=1e-5)


def texts_of(road: Path) -> dict[str, tuple[str, str]]:
    return {r["_id"]: (r["title"], r["text"]) for r in records(road / "passages")}


def test_turns_group_anew_and_each_query_is_of_its_group(road: Path, tmp_path: Path) -> None:
    once = made(road, tmp_path / "once", size=8, per_passage=2)
    twice = made(road, tmp_path / "twice", size=8, per_passage=2, turns=2)
    assert json.dumps(twice[:5]) == json.dumps(once) and len(twice) == 10
    assert twice[5]["passages"] != twice[0]["passages"]
    of_passage = {
        name: {query.text for query in queries}
        for name, queries in mining.of_contexts([records(road / "contexts")]).items()
    }
    names = {text: name for name, text in texts_of(road).items()}
    for of in once:
        known = {
            q for p in of["passages"] for q in of_passage.get(names[p["title"], p["text"]], ())
        }
        assert set(of["queries"]) <= known and len(of["queries"]) >= 12


def test_groups_become_examples(road: Path, tmp_path: Path) -> None:
    made(road, tmp_path / "groups", size=8, per_passage=2)
    stage = Tokenize.make(pairs=str(tmp_path / "groups"), task="groups", workers=1)
    artifact = execute(stage, tmp_path / "examples")
    (first, *_) = toy_examples.stored(artifact.path)
    assert len(first["passages"]) == 8
    assert len(first["scores"]) == 8 * len(first["queries"])
    with pytest.raises(UserError, match="--task groups reads --pairs"):
        Tokenize.make(passages="x", task="groups").check()


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    for name, value in (("size", 1), ("per_passage", 0), ("turns", 0)):
        with pytest.raises(UserError, match=f"{name}={value} is too few"):
            group.Group.make(passages="p", contexts="c", teacher="t", **{name: value}).check()


def test_queries_with_judgements_and_without(road: Path, tmp_path: Path) -> None:
    teacher = Hybrid(artifacts.load(road / "hybrid"))
    text = records(road / "passages")[5]["text"]
    (tmp_path / "queries.jsonl").write_text(
        "".join(
            json.dumps({"_id": name, "text": words}) + "\n"
            for name, words in (("judged", "river"), ("log", text), ("elsewhere", "lamp"))
        )
    )
    known = list(teacher.ids)
    (tmp_path / "qrels.tsv").write_text(
        f"query-id\tcorpus-id\tscore\njudged\t{known[0]}\t1\njudged\t{known[1]}\t1\n"
        "elsewhere\tnowhere\t1\n"
    )
    stage = group.Group(
        passages=str(road / "passages"),
        queries=str(tmp_path / "queries.jsonl"),
        qrels=str(tmp_path / "qrels.tsv"),
        teacher=str(road / "hybrid"),
        size=8,
    )
    asked = [
        name for of in records(execute(stage, tmp_path / "out").path) for name in of["query_ids"]
    ]
    first = teacher.ids[int(teacher.find([text], 1)[1][0, 0])]
    assert sorted(asked) == ["judged", "judged", "log"] and first == known[5]
