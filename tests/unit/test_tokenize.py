"""`qac tokenize`: what is stored, the same bytes however it is run, sources of judged queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_examples
from toy_examples import asked, passages_of, stored

from qac_jax import artifacts
from qac_jax.data.examples import Examples
from qac_jax.data.shards import documents
from qac_jax.errors import DataError, UserError
from qac_jax.fields import flat
from qac_jax.formats import records
from qac_jax.pipeline import engine
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


def test_tasks_are_the_kinds() -> None:
    from qac_jax.data.kind import DocumentKind, JudgedKind
    from qac_jax.data.kinds import KINDS

    tasks = flat(Tokenize)["task"].field.metadata["choices"]
    documents = {n for n, kind in KINDS.items() if isinstance(kind, DocumentKind)}
    ranking = {n for n, kind in KINDS.items() if isinstance(kind, JudgedKind)}
    assert set(tasks) == set(KINDS) == {*documents, *ranking}


def test_the_same_bytes_however_it_is_run(folder: Path, tmp_path: Path) -> None:
    first = toy_examples.tokenized(folder, "mixed")
    fields: dict[str, Any] = dict(
        passages=str(folder / "passages"),
        contexts=str(folder / "contexts"),
        task="mixed",
        tokenizer=str(folder / "tokenizer"),
        splitter=str(folder / "punkt.json"),
        siblings=2,
        shards=2,
    )
    again = execute(Tokenize.make(**fields, workers=2), tmp_path / "again")
    assert again.identity == first.identity and again.count == first.count
    other = execute(Tokenize.make(**{**fields, "seed": 1}, workers=1), tmp_path / "other")
    assert other.identity != first.identity
    three = execute(Tokenize.make(**{**fields, "shards": 5}, workers=1), tmp_path / "five")
    assert stored(three.path) == stored(first.path)
    assert first.info["shards"] != three.info["shards"]


def test_an_interrupted_run_goes_on_with_the_next_shard(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Tokenize.make(
        passages=str(folder / "passages"),
        task="mlm",
        tokenizer=str(folder / "tokenizer"),
        shards=4,
        workers=1,
    )
    whole = execute(stage, tmp_path / "whole")
    run = engine.run
    made: list[int] = []

    def dying(function: Any, jobs: Any, **options: Any) -> Any:
        for number, answer in enumerate(run(function, jobs, **options)):
            if number == 2 and not made:
                made.append(number)
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(engine, "run", dying)
    with pytest.raises(KeyboardInterrupt):
        execute(stage, tmp_path / "cut")
    with pytest.raises(UserError, match="unfinished"):
        Examples(tmp_path / "cut")
    left: list[int] = []

    def counting(function: Any, jobs: Any, **options: Any) -> Any:
        left.append(len(jobs))
        return run(function, jobs, **options)

    monkeypatch.setattr(engine, "run", counting)
    assert execute(stage, tmp_path / "cut").identity == whole.identity
    assert left == [2]
    assert stored(tmp_path / "cut") == stored(tmp_path / "whole")


def test_tfds_reads_what_we_read(folder: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    artifact = toy_examples.tokenized(folder, "mixed")
    builder = tfds.builder_from_directory(artifact.path)
    theirs = builder.as_data_source("train")
    ours = stored(artifact.path)
    assert len(theirs) == len(ours) == artifact.count
    for number in (0, 1, artifact.count - 1):
        flat = theirs[number]
        for name, value in ours[number].items():
            lengths = flat.get(f"{name}_lengths")
            expected = flat[name].tolist()
            if lengths is not None:
                edges = np.cumsum(lengths)[:-1]
                expected = [part.tolist() for part in np.split(flat[name], edges)]
                expected = expected if len(lengths) else []
            assert value == expected


def test_siblings_are_passages_of_the_same_document(folder: Path) -> None:
    artifact = toy_examples.tokenized(folder, "mixed")
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    source = Examples(artifact.path)
    documents_of = np.asarray(source.documents)
    texts = [r["text"] for r in passages_of(folder)]
    sizes = np.bincount(documents_of)
    names = [r["doc"] for r in passages_of(folder)]
    assert [names.count(name) for name in dict.fromkeys(names)] == sizes.tolist()
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


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_ranges_of_passages_share_out_the_documents(folder: Path, count: int) -> None:
    passages = passages_of(folder)
    edges = [len(passages) * number // count for number in range(count + 1)]
    found = []
    for start, stop in zip(edges, edges[1:], strict=False):
        for first, group in documents(passages, start, stop):
            assert [passages[first + i]["_id"] for i in range(len(group))] == [
                r["_id"] for r in group
            ]
            assert len({r["doc"] for r in group}) == 1
            found += [r["_id"] for r in group]
    assert found == list(passages.ids())


def test_contexts_in_another_order_find_their_passages(folder: Path, tmp_path: Path) -> None:
    whole = list(records.Records(artifacts.load(folder / "contexts")))
    some = [r for r in reversed(whole) if not r["_id"].endswith("#1")]
    toy_examples._write(tmp_path / "contexts", "contexts", some)
    fields: dict[str, Any] = dict(
        passages=str(folder / "passages"),
        task="passage_query",
        tokenizer=str(folder / "tokenizer"),
        workers=1,
    )
    found = execute(Tokenize.make(**fields, contexts=str(tmp_path / "contexts")), tmp_path / "made")
    tokenizer = tokenizers.load(str(folder / "tokenizer"))
    asked = {r["_id"]: [tokenizer.encode(c["text"]) for c in r["contexts"]] for r in some}
    expected = [asked[name] for name in passages_of(folder).ids() if asked.get(name)]
    assert [r["contexts"] for r in stored(found.path)] == expected
    left_out = found.info["left_out"]["passages without queries"]
    assert left_out == len(whole) - len(expected)


def test_origins_choose_contexts(folder: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = dict(
        passages=str(folder / "passages"),
        contexts=str(folder / "contexts"),
        tokenizer=str(folder / "tokenizer"),
        workers=1,
    )
    execute(Tokenize.make(**fields, task="passage_query", origins=("topic",)), tmp_path / "topics")
    kept = sum(len(r["contexts"]) for r in stored(tmp_path / "topics"))
    given = [
        c["origin"]
        for r in records.Records(artifacts.load(folder / "contexts"))
        for c in r["contexts"]
    ]
    assert kept == given.count("topic")
    found = execute(Tokenize.make(**fields, task="augtriever"), tmp_path / "words")
    lists = {n for n in found.info["schema"] if n + "_lengths" in found.info["schema"]}
    assert lists == {"anchor", "phrase", "title", "qgen", "topic"}
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
        stage = Tokenize.make(
            passages=str(folder / "passages"),
            task="mlm",
            tokenizer=str(folder / "tokenizer"),
            title=how,
            workers=1,
        )
        found = execute(stage, tmp_path / how)
        assert stored(found.path)[number]["passage"] == expected


def test_what_cannot_be_tokenized(folder: Path, tmp_path: Path) -> None:
    source, words = str(folder / "passages"), str(folder / "tokenizer")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "needs --passages"),
        ({"passages": source}, "needs queries; give --contexts"),
        ({"passages": source, "task": "triples"}, "--training"),
        ({"passages": source, "queries": asked(folder)["queries"]}, "give --qrels"),
        ({"passages": source, "task": "mlm", "siblings": 0}, "siblings=0"),
        ({"passages": source, "task": "mlm", "sorts": ("near",)}, "'near' is not known"),
        (
            {"passages": source, "contexts": str(folder / "contexts"), **asked(folder)},
            "leave one of them out",
        ),
    )
    for number, (fields, message) in enumerate(cases):
        with pytest.raises(UserError, match=message):
            execute(Tokenize.make(**fields, tokenizer=words, workers=1), tmp_path / str(number))
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\nq0\tnowhere\t1\n")
    stage = Tokenize.make(
        passages=source,
        task="triples",
        tokenizer=words,
        workers=1,
        queries=asked(folder)["queries"],
        qrels=str(qrels),
    )
    with pytest.raises(DataError, match=r"qrels.tsv:2: passage 'nowhere' is not in the corpus"):
        execute(stage, tmp_path / "nowhere")
