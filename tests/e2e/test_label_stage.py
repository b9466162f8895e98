"""search --rerank and label: from a run to training examples, interrupted on the way."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_cross_encoder
import toy_retrieval

from qac_jax import cli
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.inference.reranker import Reranker, probability
from qac_jax.inference.settings import RerankerOptions
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import mining
from qac_jax.stages import mine as label_stage
from qac_jax.stages.index import Bm25
from qac_jax.stages.mine import Label
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize


@dataclasses.dataclass
class Road:
    folder: Path
    data: Path
    passages: Artifact
    run: Artifact
    model: Path
    thresholds: tuple[float, float]

    def label(self, name: str, **changes: Any) -> Artifact:
        given = {
            "passages": str(self.passages.path),
            "queries": str(self.data / "queries.jsonl"),
            "candidates": str(self.run.path),
            "teacher": str(self.model),
            "positive": self.thresholds[1],
            "negative": self.thresholds[0],
            "depth": 10,
            "max_length": 48,
        }
        stage = Label.make(**{**given, **changes})
        return execute(stage, self.folder / name)


@pytest.fixture(scope="module")
def road(tmp_path_factory) -> Road:
    folder = tmp_path_factory.mktemp("label")
    data = toy_retrieval.write_collection(folder / "data", passages=24, queries=12)
    prepared = execute(
        Prepare.make(documents=str(data), format="beir", cut="none", workers=1), folder / "passages"
    )
    bm25 = execute(Bm25(passages=str(prepared.path)), folder / "bm25")
    search = Search(index=str(bm25.path), queries=str(data / "queries.jsonl"), k=12)
    run = execute(search, folder / "run")
    model = toy_cross_encoder.save_cross_encoder(folder / "model", labels=2)
    # A random model's scores lie anywhere: the thresholds part the best from the worst third.
    texts = {r["_id"]: f"{r['title']} {r['text']}" for r in Records(prepared)}
    asked = {q.id: q.text for q in read_queries(data / "queries.jsonl")}
    ranked = runs.read_run(str(run.path / "run.trec"))
    pairs = [(asked[q], texts[p]) for q, found in ranked.items() for p in found.ids[:10]]
    odds = Reranker.load(model, RerankerOptions(max_length=48)).score(*zip(*pairs, strict=True))
    low, high = np.quantile(probability(odds), (0.33, 0.66))
    assert low < high
    return Road(folder, data, prepared, run, model, (float(low), float(high)))


def test_a_reranked_run_labels_as_its_teacher(road: Road) -> None:
    stage = Search.make(
        candidates=str(road.run.path),
        queries=str(road.data / "queries.jsonl"),
        passages=str(road.passages.path),
        reranker=str(road.model),
        k=12,
        rerank_depth=8,
        max_length=48,
    )
    artifact = execute(stage, road.folder / "reranked")
    before = runs.read_run(str(road.run.path / "run.trec"))
    after = runs.read_run(str(artifact.path / "run.trec"))
    assert artifact.count == 12 and any(before[q].ids[:8] != after[q].ids[:8] for q in before)
    for query, ranking in before.items():
        assert set(after[query].ids[:8]) == set(ranking.ids[:8])
        assert after[query].ids[8:] == ranking.ids[8:]  # nobody read them: their order stays
    told = road.label("scored", teacher="", scored=str(artifact.path), depth=8)
    read = road.label("read", depth=8)
    assert told.info["counts"] == read.info["counts"]
    pairs = zip(Records(told), Records(read), strict=True)
    assert all(a["negatives"] == b["negatives"] for a, b in pairs)


def test_an_interrupted_labelling_goes_on(road: Road, monkeypatch) -> None:
    whole = road.label("whole")
    monkeypatch.setattr(label_stage, "_LABELLED", 4)
    records, calls = mining.RunLabels.records, []

    def counted(self, queries, facts, advance):
        calls.append(len(queries))
        if len(calls) == 2:
            raise RuntimeError("pulled the plug")
        return records(self, queries, facts, advance)

    monkeypatch.setattr(mining.RunLabels, "records", counted)
    with pytest.raises(RuntimeError, match="plug"):
        road.label("cut")
    cut = road.label("cut")
    assert calls == [4, 4, 4, 4]
    assert list(Records(cut)) == list(Records(whole))
    assert cut.info["counts"] == whole.info["counts"]


def test_labels_become_examples_with_their_scores(road: Road) -> None:
    found = road.label("labels", lines="pair", qrels=str(road.data / "qrels" / "test.tsv"))
    records = list(Records(found))
    assert records and all(len(r["negatives"]) == len(r["positives"]) == 1 for r in records)
    lines = (road.data / "qrels" / "test.tsv").read_text().splitlines()[1:]
    judged = {query: passage for query, passage, _ in (line.split("\t") for line in lines)}
    assert all(r["positives"] == [judged[r["_id"]]] for r in records)
    stage = Tokenize.make(
        passages=str(road.passages.path),
        negatives=str(found.path),
        task="triples",
        teacher=True,
        workers=1,
    )
    assert execute(stage, road.folder / "triples").count == len(records)


def test_queries_of_tests_are_left_out_and_counted(road: Road, tmp_path) -> None:
    lines = (road.data / "queries.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    (tmp_path / "dev.txt").write_text(f"{texts[0].upper()} ?\n")
    (tmp_path / "test.txt").write_text(f"{texts[5]}\n")
    exclude = f"{tmp_path / 'dev.txt'},{tmp_path / 'test.txt'}"
    truth = str(road.data / "qrels" / "test.tsv")
    found = road.label("excluded", exclude=exclude, truth=truth)
    assert found.info["counts"]["queries of a dev or test set"] == 2
    assert found.info["counts"]["queries"] == 10
    lines = (road.data / "qrels" / "test.tsv").read_text().splitlines()[1:]
    judged = {tuple(line.split("\t")[:2]) for line in lines}
    right = [(r["_id"], r["positives"][0]) in judged for r in Records(found)]
    assert found.info["accuracy"]["positives"] == np.mean(right)
    assert {r["query"] for r in Records(found)}.isdisjoint({texts[0], texts[5]})


def test_answers_say_what_is_right_without_a_teacher(road: Road, tmp_path) -> None:
    asked = [json.loads(line) for line in (road.data / "queries.jsonl").read_text().splitlines()]
    answered = [{**record, "metadata": {"answers": ["violin"]}} for record in asked]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in answered))
    found = road.label("answers", teacher="", answers=str(file))
    texts = {r["_id"]: r["text"].lower() for r in Records(road.passages)}
    run = runs.read_run(str(road.run.path / "run.trec"))
    for record in Records(found):
        (positive,) = record["positives"]
        holding = [n for n in run[record["_id"]].ids[:10] if "violin" in texts[n]]
        assert positive == holding[0]
        assert not any("violin" in texts[name] for name in record["negatives"])
    assert found.count > 3


def test_what_does_not_fit_together_is_told(road: Road, tmp_path) -> None:
    for changes, sentence in (
        ({"teacher": ""}, "a teacher's scores"),
        ({"positive": 1.0}, "none of 12 queries"),
    ):
        with pytest.raises(UserError, match=sentence):
            road.label(f"wrong-{'-'.join(changes)}", **changes)


def test_a_question_on_the_screen_in_the_new_order(road: Road, capsys) -> None:
    question = json.loads((road.data / "queries.jsonl").read_text().splitlines()[0])["text"]
    ask = ["search", "--index", str(road.folder / "bm25"), "--k", "3", "--json", question]
    assert cli.main([*ask, "--reranker", str(road.model)]) == 0
    scores = [hit["score"] for hit in json.loads(capsys.readouterr().out)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
