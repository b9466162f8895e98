"""`qac tokenize` of judged queries: negatives from runs, files and artefacts, and labels."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
from toy_examples import asked, passages_of, stored

from qac_jax import artifacts
from qac_jax.data.judged import generated_id
from qac_jax.data.loader import preview
from qac_jax.errors import DataError, UserError
from qac_jax.fields import change
from qac_jax.formats import records
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.stages.tokenize import Tokenize
from qac_jax.text import tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenize")
    toy_examples.vocabulary(folder)
    source = toy_examples.passages(folder)
    toy_examples.contexts(folder, source)
    toy_examples.judgements(folder, source)
    return folder


class Judged:
    """Triples made of queries, judgements and some source of negatives."""

    def __init__(self, folder: Path, out: Path):
        self.folder, self.out, self.count = folder, out, 0
        tokenizer = tokenizers.load(str(folder / "tokenizer"))
        self.names: dict[tuple[int, ...], str] = {}
        for record in passages_of(folder):
            ids = tokenizer.encode(record["title"])
            ids = [*ids, tokenizer.sep_id] if ids else []
            self.names[(*ids, *tokenizer.encode(record["text"]))] = record["_id"]

    def made(self, **fields: Any) -> tuple[artifacts.Artifact, list[dict[str, Any]]]:
        self.count += 1
        given: dict[str, Any] = dict(
            passages=str(self.folder / "passages"),
            tokenizer=str(self.folder / "tokenizer"),
            task="triples",
            workers=1,
        )
        artifact = execute(Tokenize.make(**{**given, **fields}), self.out / str(self.count))
        found = stored(artifact.path)
        for record in found:
            for name in ("positives", "negatives"):
                record[name] = [self.names[tuple(ids)] for ids in record[name]]
        return artifact, found


@pytest.fixture()
def judged(folder: Path, tmp_path: Path) -> Judged:
    return Judged(folder, tmp_path)


def relevant(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in (folder / "qrels.tsv").read_text().splitlines()[1:]:
        query, passage, _ = line.split("\t")
        found.setdefault(query, set()).add(passage)
    return found


def test_negatives_from_a_run(folder: Path, tmp_path: Path, judged: Judged) -> None:
    names, truth = list(passages_of(folder).ids()), relevant(folder)
    lines = [
        f"q{q} Q0 {names[(q * 7 + rank) % len(names)]} {rank} {-rank} x"
        for q in range(20)
        for rank in reversed(range(60))
    ]
    run = tmp_path / "run.trec"
    run.write_text("\n".join(lines) + "\n")
    artifact, found = judged.made(**asked(folder), negatives=str(run), depth=30, keep=10)
    assert len(found) == 20  # only queries that have negatives
    assert artifact.info["left_out"] == {"queries without negatives": len(truth) - 20}
    for q, record in enumerate(found):
        assert set(record["positives"]) == truth[f"q{q}"]
        ranked = [names[(q * 7 + rank) % len(names)] for rank in range(60)]
        first = [name for name in ranked if name not in truth[f"q{q}"]][:30]
        assert len(set(record["negatives"])) == 10 and set(record["negatives"]) <= set(first)
    bad = tmp_path / "bad.trec"
    bad.write_text("q0 Q0 d0#0 1 nan x\n")
    with pytest.raises(DataError, match=r"bad.trec:1: the score nan is not a finite number"):
        judged.made(**asked(folder), negatives=str(bad))
    bad.write_text("q0 Q0 d0#0 first 1.0 x\n")
    with pytest.raises(DataError, match=r"bad.trec:1: the rank 'first' is not a number"):
        judged.made(**asked(folder), negatives=str(bad))


def test_negatives_from_triples_and_hard_negatives(
    folder: Path, tmp_path: Path, judged: Judged
) -> None:
    names, truth = list(passages_of(folder).ids()), relevant(folder)
    others = [name for name in names if name not in truth["q3"]][:5]
    positive = sorted(truth["q3"])[0]
    triples = tmp_path / "triples.tsv"
    triples.write_text("".join(f"q3\t{positive}\t{name}\n" for name in others))
    _, (record,) = judged.made(**asked(folder), negatives=str(triples))
    assert sorted(record["negatives"]) == sorted(others)
    assert set(record["positives"]) == truth["q3"]
    hard = tmp_path / "hard.jsonl"
    hard.write_text(
        json.dumps(
            {
                "qid": "q3",
                "pos": [{"pid": positive, "ce-score": 9.0}],
                "neg": {"bm25": [{"pid": name, "ce-score": 1.0} for name in others]},
            }
        )
        + "\n"
    )
    _, (record,) = judged.made(queries=asked(folder)["queries"], negatives=str(hard))
    assert record["positives"] == [positive] and sorted(record["negatives"]) == sorted(others)


def test_negatives_and_scores_from_an_artefact(
    folder: Path, tmp_path: Path, judged: Judged
) -> None:
    names = list(passages_of(folder).ids())
    lines = [
        {
            "_id": "x",
            "query": "storm mills",
            "positives": [names[0]],
            "negatives": names[5:9],
            "positives_scores": [7.5],
            "negatives_scores": [4.0, 3.0, 2.0, 1.0],
        }
    ]
    source = toy_examples._write(tmp_path / "negatives", "negatives", lines)
    _, (record,) = judged.made(negatives=source, teacher=True)
    assert record["positives"] == [names[0]] and record["positives_scores"] == [7.5]
    scores = dict(zip(record["negatives"], record["negatives_scores"], strict=True))
    assert scores == dict(zip(names[5:9], [4.0, 3.0, 2.0, 1.0], strict=True))


def test_generated_queries_stand_in_for_training_queries(folder: Path, judged: Judged) -> None:
    artifact, found = judged.made(contexts=str(folder / "contexts"), random_negatives=3)
    given = list(records.Records(artifacts.load(folder / "contexts")))
    expected = [r["_id"] for r in given for _ in r["contexts"]]
    assert [r["positives"] for r in found] == [[name] for name in expected]
    for record in found:
        assert len(set(record["negatives"])) == 3
        assert record["positives"][0] not in record["negatives"]


def test_negatives_of_generated_queries(folder: Path, tmp_path: Path, judged: Judged) -> None:
    given = list(records.Records(artifacts.load(folder / "contexts")))
    name = next(r["_id"] for r in given if len(r["contexts"]) > 1)
    others = [n for n in passages_of(folder).ids() if n != name][:3]
    lines = [
        {"_id": generated_id(name, 1), "negatives": [*others, name]},
        {"_id": generated_id(name, 99), "negatives": others},
    ]
    source = toy_examples._write(tmp_path / "negatives", "negatives", lines)
    artifact, (record,) = judged.made(contexts=str(folder / "contexts"), negatives=source)
    assert record["positives"] == [name] and sorted(record["negatives"]) == sorted(others)
    left_out = artifact.info["left_out"]
    assert left_out == {"negatives of queries that were not generated": 1}


def test_training_lines_need_no_passages(folder: Path, tmp_path: Path) -> None:
    line = {
        "query_id": "1",
        "query": "storm mills",
        "positive_passages": [{"docid": "a", "title": "Tides", "text": "barley curves"}],
        "negative_passages": [{"docid": "b", "title": "", "text": "matrix"}],
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    stage = Tokenize.make(
        training=str(tmp_path / "train.jsonl"),
        task="triples",
        tokenizer=str(folder / "tokenizer"),
        workers=1,
    )
    artifact = execute(stage, tmp_path / "made")
    shown = preview(artifact, 5)
    assert shown[0]["query"] == "[CLS] storm mills [SEP]"
    assert shown[0]["passages"][0] == "[CLS] tides [SEP] barley curves [SEP]"
    assert shown[0]["passages"][1] == "[CLS] matrix [SEP]"


def test_cross_encoder_labels(folder: Path, tmp_path: Path) -> None:
    stage = Tokenize.make(
        passages=str(folder / "passages"),
        tokenizer=str(folder / "tokenizer"),
        workers=1,
        task="cross_encoder",
        random_negatives=9,
        negatives_per_query=4,
        **asked(folder),
    )
    found = stored(execute(stage, tmp_path / "made").path)
    labels = np.array([record["label"][0] for record in found])
    truth = relevant(folder)
    assert labels.sum() == sum(map(len, truth.values()))
    assert (labels == 0).sum() == 4 * len(truth)


def test_a_cross_encoder_reads_the_scores_of_the_run(folder: Path, tmp_path: Path) -> None:
    truth, names = relevant(folder), list(passages_of(folder).ids())
    texts = {q.id: q.text for q in read_queries(folder / "queries.jsonl")}
    tokenizer = tokenizers.load()  # which has digits
    lost = sorted(truth["q1"])  # the run does not find what answers q1, but all of q0 and q2
    run, percent = tmp_path / "run.trec", {}
    with run.open("w") as file:
        for query in ("q0", "q1", "q2"):
            others = [name for name in names if name not in truth[query]][:6]
            answers = [] if query == "q1" else sorted(truth[query])
            for rank, name in enumerate([*others[:3], *answers, *others[3:]]):
                score = 40.0 - 3.2 * rank
                percent[query, name] = round(100 * score / (40.0 if rank else 36.8))
                file.write(f"{query} Q0 {name} {rank + 1} {score} x\n")
    stage = Tokenize.make(
        passages=str(folder / "passages"),
        workers=1,
        task="cross_encoder",
        negatives=str(run),
        scores=True,
        **asked(folder),
    )
    artifact = execute(stage, tmp_path / "made")
    assert artifact.info["left_out"]["positives without a score"] == len(lost)
    assert artifact.info["left_out"]["queries without a positive passage"] == 1
    assert artifact.info["reading"]["scores"] is True
    # Four of six negatives are drawn, every positive is there.
    expected: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    for query, name in percent:
        ids = tuple(tokenizer.encode(f"{percent[query, name]} {texts[query]}"))
        if query != "q1":
            expected[int(name in truth[query])].add(ids)
    made: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    for record in stored(artifact.path):
        made[record["label"][0]].add(tuple(record["query"]))
    assert made[1] == expected[1] and made[0] < expected[0] and len(made[0]) == 8
    refused = change(stage, {"random_negatives": 2})
    with pytest.raises(UserError, match="random negatives have no score"):
        execute(refused, tmp_path / "refused")
    with pytest.raises(UserError, match="--scores are for --task cross_encoder"):
        execute(dataclasses.replace(stage, task="triples"), tmp_path / "refused")
