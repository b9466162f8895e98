"""search --rerank and label: from a run to training examples, interrupted on the way."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_retrieval
from toy_process import Qac

from qac_jax import artifacts
from qac_jax.artifacts import Artifact
from qac_jax.formats import runs
from qac_jax.formats.queries import read_queries
from qac_jax.formats.records import Records
from qac_jax.inference.reranker import Reranker, probability
from qac_jax.inference.settings import RerankerOptions
from qac_jax.pipeline.stage import execute
from qac_jax.retrieval import mining
from qac_jax.stages import mine as label_stage
from qac_jax.stages.mine import Label
from qac_jax.stages.search import Search
from qac_jax.stages.tokenize import Tokenize


@dataclasses.dataclass
class Road:
    folder: Path
    thresholds: tuple[float, float]

    def given(self, **names: str) -> dict[str, Any]:
        places = {"passages": "passages", "queries": "data/queries.jsonl", "candidates": "run"}
        return {field: str(self.folder / name) for field, name in {**places, **names}.items()}

    def label(self, name: str, **changes: Any) -> Artifact:
        low, high = self.thresholds
        rules = {"negative": low, "positive": high, "depth": 10, "max_length": 48}
        stage = Label.make(**{**self.given(teacher="model"), **rules, **changes})
        return execute(stage, self.folder / name)

    def run(self, name: str = "run") -> runs.Run:
        return runs.read_run(str(self.folder / name / "run.trec"))


@pytest.fixture(scope="module")
def road(tmp_path_factory) -> Road:
    folder = toy_retrieval.collected(tmp_path_factory.mktemp("label"))
    queries = folder / "data" / "queries.jsonl"
    search = Search(index=str(folder / "bm25"), queries=str(queries), k=12)
    ranked = runs.read_run(str(execute(search, folder / "run").path / "run.trec"))
    model = toy_retrieval.save_cross_encoder(folder / "model", labels=2)
    # A random model's scores lie anywhere: the thresholds part the best from the worst third.
    passages = Records(artifacts.load(folder / "passages"))
    texts = {r["_id"]: f"{r['title']} {r['text']}" for r in passages}
    asked = {q.id: q.text for q in read_queries(queries)}
    pairs = [(asked[q], texts[p]) for q, found in ranked.items() for p in found.ids[:10]]
    odds = Reranker.load(model, RerankerOptions(max_length=48)).score(*zip(*pairs, strict=True))
    low, high = np.quantile(probability(odds), (0.33, 0.66))
    assert low < high
    return Road(folder, (float(low), float(high)))


def test_a_reranked_run_labels_as_its_teacher(road: Road) -> None:
    given = {"k": 12, "rerank_depth": 8, "max_length": 48}
    stage = Search.make(**road.given(reranker="model"), **given)
    artifact = execute(stage, road.folder / "reranked")
    before, after = road.run(), road.run("reranked")
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


def test_a_question_on_the_screen_in_the_new_order(road: Road, qac: Qac) -> None:
    ask = ["search", "--index", road.folder / "bm25", "--k", 3, "river stone"]
    hits = qac.json(*ask, "--reranker", road.folder / "model")
    scores = [hit["score"] for hit in hits]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)


def test_labels_become_examples_without_queries_of_tests(road: Road, tmp_path) -> None:
    data = road.folder / "data"
    texts = [q.text for q in read_queries(data / "queries.jsonl")]
    (tmp_path / "dev.txt").write_text(f"{texts[0].upper()} ?\n")
    (tmp_path / "test.txt").write_text(f"{texts[5]}\n")
    exclude = f"{tmp_path / 'dev.txt'},{tmp_path / 'test.txt'}"
    qrels = str(data / "qrels" / "test.tsv")
    found = road.label("labels", lines="pair", qrels=qrels, exclude=exclude)
    assert found.info["counts"]["queries of a dev or test set"] == 2
    records = list(Records(found))
    assert {r["query"] for r in records}.isdisjoint({texts[0], texts[5]})
    assert records and all(len(r["negatives"]) == len(r["positives"]) == 1 for r in records)
    lines = Path(qrels).read_text().splitlines()[1:]
    judged = {query: passage for query, passage, _ in (line.split("\t") for line in lines)}
    assert all(r["positives"] == [judged[r["_id"]]] for r in records)
    given = {"passages": str(road.folder / "passages"), "negatives": str(found.path)}
    stage = Tokenize.make(**given, task="triples", teacher=True, workers=1)
    assert execute(stage, road.folder / "triples").count == len(records)


def test_answers_say_what_is_right_without_a_teacher(road: Road, tmp_path) -> None:
    file = tmp_path / "questions.jsonl"
    asked = map(json.loads, (road.folder / "data" / "queries.jsonl").read_text().splitlines())
    lines = (json.dumps({**one, "metadata": {"answers": ["violin"]}}) for one in asked)
    file.write_text("\n".join(lines))
    qrels = road.folder / "data" / "qrels" / "test.tsv"
    found = road.label("answers", teacher="", answers=str(file), truth=str(qrels))
    passages = Records(artifacts.load(road.folder / "passages"))
    texts, run = {r["_id"]: r["text"].lower() for r in passages}, road.run()
    for record in Records(found):
        holding = [n for n in run[record["_id"]].ids[:10] if "violin" in texts[n]]
        assert record["positives"] == holding[:1]
        assert not any("violin" in texts[name] for name in record["negatives"])
    assert found.count > 3
    judged = {tuple(line.split("\t")[:2]) for line in qrels.read_text().splitlines()[1:]}
    right = [(record["_id"], record["positives"][0]) in judged for record in Records(found)]
    assert found.info["accuracy"]["positives"] == np.mean(right)
