"""`qac tokenize`: what is stored, the same bytes however it is run, sources of judged queries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
from toy_examples import asked, passages_of, stored

from qac_jax import artifacts
from qac_jax.data.examples import Examples
from qac_jax.data.judged import generated_id
from qac_jax.data.loader import preview
from qac_jax.errors import DataError, UserError
from qac_jax.formats import records
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.stages.tokenize import Tokenize
from qac_jax.text import tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenize")
    toy_examples.vocabulary(folder)
    toy_examples.passages(folder)
    toy_examples.contexts(folder)
    toy_examples.judgements(folder)
    return folder


def made(folder: Path, out: Path, **fields: Any) -> artifacts.Artifact:
    given = {"passages": str(folder / "passages"), "tokenizer": str(folder / "tokenizer")}
    return execute(Tokenize.make(**{**given, "workers": 1, **fields}), out)


@pytest.mark.slow
def test_the_same_bytes_however_it_is_run(folder: Path, tmp_path: Path) -> None:
    first = toy_examples.tokenized(folder, "mixed")
    fields: dict[str, Any] = {"task": "mixed", "siblings": 2, "shards": 2}
    fields |= {"contexts": str(folder / "contexts"), "splitter": "shipped"}
    again = made(folder, tmp_path / "again", **fields, workers=2)
    assert again.identity == first.identity and again.count == first.count
    other = made(folder, tmp_path / "other", **fields, seed=1)
    assert other.identity != first.identity
    three = made(folder, tmp_path / "five", **{**fields, "shards": 5})
    assert stored(three.path) == stored(first.path)
    assert first.info["shards"] != three.info["shards"]


@pytest.mark.slow
def test_tensorflow_datasets_reads_the_folder(folder: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    artifact = toy_examples.tokenized(folder, "passage_query")
    theirs = tfds.builder_from_directory(str(artifact.path)).as_data_source("train")
    ours = Examples(artifact).read(np.arange(artifact.count))
    assert len(theirs) == len(ours) > 0
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one["passage"], other["passage"])


def test_siblings_are_passages_of_the_same_document(folder: Path) -> None:
    artifact = toy_examples.tokenized(folder, "mixed")
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    source = Examples(artifact.path)
    documents_of = np.asarray(source.documents)
    texts = [r["text"] for r in passages_of(folder)]
    ids = [tokenizer.encode(text) for text in texts]
    for number, record in enumerate(stored(artifact.path)):
        own = np.flatnonzero(documents_of == documents_of[number])
        siblings = [ids[i] for i in own if i != number]
        assert record["passage"] == ids[number]
        assert all(r in siblings for r in record["random"]) and len(record["random"]) <= 2
        near = [ids[i] for i in (number - 1, number + 1) if i in own]
        assert all(n in near for n in record["nearby"])
        assert bool(record["random"]) == bool(record["nearby"]) == (len(own) > 1)
        assert record["overlap"]
        first_word = tokenizer.decode(record["overlap"][0]).split()[0]
        assert any(first_word in texts[i].lower() for i in own)


def test_contexts_in_another_order_find_their_passages(folder: Path, tmp_path: Path) -> None:
    whole = list(records.Records(artifacts.load(folder / "contexts")))
    some = [r for r in reversed(whole) if not r["_id"].endswith("#1")]
    toy_examples.written(tmp_path / "contexts", "contexts", some)
    given = str(tmp_path / "contexts")
    found = made(folder, tmp_path / "made", task="passage_query", contexts=given)
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    asked = {r["_id"]: [tokenizer.encode(c["text"]) for c in r["contexts"]] for r in some}
    expected = [asked[name] for name in passages_of(folder).ids() if asked.get(name)]
    assert [r["contexts"] for r in stored(found.path)] == expected
    left_out = found.info["left_out"]["passages without queries"]
    assert left_out == len(whole) - len(expected)


def test_origins_choose_contexts(folder: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"contexts": str(folder / "contexts")}
    made(folder, tmp_path / "topics", **given, task="passage_query", origins=("topic",))
    kept = sum(len(r["contexts"]) for r in stored(tmp_path / "topics"))
    whole = records.Records(artifacts.load(folder / "contexts"))
    assert kept == [c["origin"] for r in whole for c in r["contexts"]].count("topic")
    made(folder, tmp_path / "words", **given, task="augtriever")
    for record in stored(tmp_path / "words"):
        assert sum(record["words"]) == len(record["text"]) and min(record["words"]) > 0


def test_titles(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    first = next(r for r in passages_of(folder) if r["title"])
    number = list(passages_of(folder).ids()).index(first["_id"])
    title, text = tokenizer.encode(first["title"]), tokenizer.encode(first["text"])
    for how, expected in (
        ("none", text),
        ("separate", [*title, tokenizer.sep_id, *text]),
        ("space", [*title, *text]),
    ):
        found = made(folder, tmp_path / how, task="mlm", title=how)
        assert stored(found.path)[number]["passage"] == expected


def test_what_cannot_be_tokenized(folder: Path, tmp_path: Path) -> None:
    source, words = str(folder / "passages"), str(folder / "tokenizer")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "reads --passages with --contexts"),
        ({"passages": source, "task": "triples"}, "--training"),
    )
    for number, (settings, message) in enumerate(cases):
        with pytest.raises(UserError, match=message):
            execute(Tokenize.make(**settings, tokenizer=words, workers=1), tmp_path / str(number))
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\nq0\tnowhere\t1\n")
    given = {**asked(folder), "qrels": str(qrels)}
    with pytest.raises(DataError, match=r"qrels.tsv:2: passage 'nowhere' is not in the corpus"):
        made(folder, tmp_path / "nowhere", task="triples", **given)


def judged(
    folder: Path, out: Path, **fields: Any
) -> tuple[artifacts.Artifact, list[dict[str, Any]]]:
    """Triples of queries, judgements and some source of negatives, by the passages' names."""
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    names: dict[tuple[int, ...], str] = {}
    for record in passages_of(folder):
        text = tokenizers.text_of(tokenizer, record, "separate")
        names[tuple(tokenizer.encode(text))] = record["_id"]
    artifact = made(folder, out, task="triples", **fields)
    found = stored(artifact.path)
    for record in found:
        for name in ("positives", "negatives"):
            record[name] = [names[tuple(ids)] for ids in record[name]]
    return artifact, found


def relevant(folder: Path) -> dict[str, set[str]]:
    judged = by_query(read_judgements(folder / "qrels.tsv"))
    return {query: set(grades) for query, grades in judged.items()}


def test_negatives_from_a_run(folder: Path, tmp_path: Path) -> None:
    names, truth = list(passages_of(folder).ids()), relevant(folder)
    lines = [
        f"q{q} Q0 {names[(q * 7 + rank) % len(names)]} {rank} {-rank} x"
        for q in range(20)
        for rank in reversed(range(60))
    ]
    run = tmp_path / "run.trec"
    run.write_text("\n".join(lines) + "\n")
    given = {**asked(folder), "negatives": str(run)}
    artifact, found = judged(folder, tmp_path / "made", **given, depth=30, keep=10)
    assert len(found) == 20  # only queries that have negatives
    assert artifact.info["left_out"] == {"queries without negatives": len(truth) - 20}
    for q, record in enumerate(found):
        assert set(record["positives"]) == truth[f"q{q}"]
        ranked = [names[(q * 7 + rank) % len(names)] for rank in range(60)]
        first = [name for name in ranked if name not in truth[f"q{q}"]][:30]
        assert len(set(record["negatives"])) == 10 and set(record["negatives"]) <= set(first)


def test_hard_negatives(folder: Path, tmp_path: Path) -> None:
    names, truth = list(passages_of(folder).ids()), relevant(folder)
    others = [name for name in names if name not in truth["q3"]][:5]
    positive = sorted(truth["q3"])[0]
    hard = tmp_path / "hard.jsonl"
    row = {"qid": "q3", "pos": [{"pid": positive, "ce-score": 9.0}]}
    worse = [{"pid": name, "ce-score": 1.0} for name in others]
    hard.write_text(json.dumps({**row, "neg": {"bm25": worse}}) + "\n")
    given = {"queries": asked(folder)["queries"], "negatives": str(hard)}
    _, (record,) = judged(folder, tmp_path / "made", **given)
    assert record["positives"] == [positive] and sorted(record["negatives"]) == sorted(others)


def test_negatives_and_scores_from_an_artefact(folder: Path, tmp_path: Path) -> None:
    names, drawn = list(passages_of(folder).ids()), [4.0, 3.0, 2.0, 1.0]
    line: dict[str, Any] = {"_id": "x", "query": "storm mills"}
    line |= {"positives": names[:1], "positives_scores": [7.5]}
    line |= {"negatives": names[5:9], "negatives_scores": drawn}
    source = toy_examples.written(tmp_path / "negatives", "negatives", [line])
    _, (record,) = judged(folder, tmp_path / "made", negatives=source, teacher=True)
    assert record["positives"] == [names[0]] and record["positives_scores"] == [7.5]
    scores = dict(zip(record["negatives"], record["negatives_scores"], strict=True))
    assert scores == dict(zip(names[5:9], drawn, strict=True))


def test_negatives_of_generated_queries(folder: Path, tmp_path: Path) -> None:
    given = list(records.Records(artifacts.load(folder / "contexts")))
    name = next(r["_id"] for r in given if len(r["contexts"]) > 1)
    others = [n for n in passages_of(folder).ids() if n != name][:3]
    lines = [
        {"_id": generated_id(name, 1), "negatives": [*others, name]},
        {"_id": generated_id(name, 99), "negatives": others},
    ]
    source = toy_examples.written(tmp_path / "negatives", "negatives", lines)
    given_texts = {"contexts": str(folder / "contexts"), "negatives": source}
    artifact, (record,) = judged(folder, tmp_path / "made", **given_texts)
    assert record["positives"] == [name] and sorted(record["negatives"]) == sorted(others)
    left_out = artifact.info["left_out"]
    assert left_out == {"negatives of queries that were not generated": 1}


def test_training_lines_need_no_passages(folder: Path, tmp_path: Path) -> None:
    line: dict[str, Any] = {"query_id": "1", "query": "storm mills"}
    line["positive_passages"] = [{"docid": "a", "title": "Tides", "text": "barley curves"}]
    line["negative_passages"] = [{"docid": "b", "title": "", "text": "matrix"}]
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    training = str(tmp_path / "train.jsonl")
    artifact = made(folder, tmp_path / "made", passages="", training=training, task="triples")
    (shown,) = preview(artifact, 5)
    assert shown["query"] == "[CLS] storm mills [SEP]"
    assert shown["passages"][:2] == ["[CLS] tides [SEP] barley curves [SEP]", "[CLS] matrix [SEP]"]


def test_a_cross_encoder_reads_the_scores_of_the_run(folder: Path, tmp_path: Path) -> None:
    truth, names = relevant(folder), list(passages_of(folder).ids())
    texts = {q.id: q.text for q in read_queries(folder / "queries.jsonl")}
    tokenizer = tokenizers.load()  # which has digits
    run = tmp_path / "run.trec"
    expected: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    with run.open("w") as file:
        for query in ("q0", "q1", "q2"):  # what answers q1 is not found, all of q0 and q2 is
            others = [name for name in names if name not in truth[query]][:6]
            answers = [] if query == "q1" else sorted(truth[query])
            for rank, name in enumerate([*others[:3], *answers, *others[3:]]):
                score = 40.0 - 3.2 * rank
                file.write(f"{query} Q0 {name} {rank + 1} {score} x\n")
                percent = round(100 * score / (40.0 if rank else 36.8))
                if query != "q1":
                    ids = tokenizer.encode(f"{percent} {texts[query]}")
                    expected[int(name in truth[query])].add(tuple(ids))
    given: dict[str, Any] = {**asked(folder), "passages": str(folder / "passages"), "workers": 1}
    given |= {"negatives": str(run), "scores": True}
    artifact = execute(Tokenize.make(**given, task="cross_encoder"), tmp_path / "made")
    assert artifact.info["left_out"]["positives without a score"] == len(truth["q1"])
    assert artifact.info["left_out"]["queries without a positive passage"] == 1
    assert artifact.info["reading"]["scores"] is True
    # Four of six negatives are drawn, every positive is there.
    made: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    for record in stored(artifact.path):
        made[record["label"][0]].add(tuple(record["query"]))
    assert made[1] == expected[1] and made[0] < expected[0] and len(made[0]) == 8
