"""Questions of a folder, a split corpus, docstrings, names, collections; leaks are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_retrieval as toy
from toy_examples import written

from qac_jax import artifacts
from qac_jax.errors import UserError
from qac_jax.formats import records
from qac_jax.formats.judgements import by_query, read_judgements
from qac_jax.formats.queries import read_queries
from qac_jax.pipeline.stage import execute
from qac_jax.queries import splitting
from qac_jax.queries.splitting import PARTS, Splitting
from qac_jax.stages.prepare import Prepare
from qac_jax.stages.questions import FILE_NAME, Ask, Collect, Judge, Leaks, Sample, Split, Unite


PASSAGES = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with test judgements, its passages, and two generated queries for each."""
    root = toy.collected(tmp_path_factory.mktemp("collect"), PASSAGES)
    texts = {f"p{i}": [f"{n} of p{i}" for n in range(2)] for i in range(PASSAGES)}
    written_contexts(root / "contexts", texts)
    return root


def written_contexts(folder: Path, texts: dict[str, list[str]]) -> str:
    found = [
        {"_id": p, "contexts": [{"text": t, "origin": "g", "score": 0.0} for t in of]}
        for p, of in texts.items()
    ]
    return written(folder, "contexts", found)


def folder(made: Path, tmp_path: Path, *splits: str) -> Path:
    """The collection with its test judgements as these splits."""
    data = tmp_path / "data"
    shutil.copytree(made / "data", data)
    (data / "qrels" / "test.tsv").unlink()
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
    texts = read_queries(artifact.file(f"{split}_queries.jsonl"))
    grades = by_query(read_judgements(artifact.file(f"{split}.tsv")))
    return {query.id: query.text for query in texts}, grades


def test_strangers_are_told(made: Path, tmp_path: Path, capsys: Any) -> None:
    data = folder(made, tmp_path, "test", "train")
    file = data / "qrels" / "train.tsv"
    file.write_text(file.read_text() + "nobody\tp1\t1\nq0\tnowhere\t1\n")
    found = collect(made, data, contexts=False)
    texts, grades = asked(found, "test")
    known = by_query(read_judgements(made / "data" / "qrels" / "test.tsv"))
    assert grades == known and texts.keys() == known.keys()
    assert found.info["test"]["from"] == "qrels/test.tsv"
    assert "1 of 13 queries" in capsys.readouterr().err
    assert "nowhere" not in json.dumps(asked(found, "train")[1])
    file.write_text("query-id\tcorpus-id\tscore\nnobody\tp1\t1\n")
    shutil.rmtree(data.parent / "out")
    with pytest.raises(UserError, match="ids are the same"):
        collect(made, data, contexts=False)


@pytest.mark.parametrize(
    ("splits", "parts"),
    [
        (("dev",), ("qrels/dev.tsv", "g", "g")),
        (("train",), ("33% of qrels/train.tsv", "g", "the rest of qrels/train.tsv and g")),
    ],
)
def test_judged_questions_are_kept_for_test_and_validation(
    splits: Any, parts: Any, made: Path, tmp_path: Path
) -> None:
    data = folder(made, tmp_path, *splits)
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


def test_summary_lines_ask_and_held_out_modules_are_only_tested(tmp_path: Path) -> None:
    """Functions of a package, with a query for each."""
    options = "kinds=function sections=first"
    whole = Prepare(format="python_docs", packages="optax", options=options)
    passages = {p["_id"]: p for p in records.Records(execute(whole, tmp_path / "passages"))}
    given = written_contexts(tmp_path / "contexts", dict.fromkeys(passages, ["a query"]))
    stage = Collect.make(passages=str(tmp_path / "passages"), contexts=given, summaries=True)
    made = execute(stage, tmp_path / "out")
    train, test = asked(made, "train"), asked(made, "test")
    held = {name for name, p in passages.items() if p["held_out"]}
    assert held and len(test[0]) and len(train[0])
    assert all(set(of) <= held for of in test[1].values())
    assert not any(held & set(of) for of in train[1].values())
    assert "a query" in train[0].values() and "a query" not in test[0].values()


SMALL = Splitting(share=0.2, at_least=4, at_most=20)


def documents_of(documents: int, each: int) -> list[dict[str, str]]:
    return [{"_id": f"d{n}-{p}", "doc": f"d{n}"} for n in range(documents) for p in range(each)]


def test_documents_stay_whole_and_parts_are_disjoint() -> None:
    passages = documents_of(30, 3)
    found, by = splitting.split(passages, SMALL)
    documents = {
        part: {r["doc"] for r, p in zip(passages, found, strict=True) if p == part}
        for part in PARTS
    }
    assert by == "document" and sum(map(len, documents.values())) == 30
    assert found.count("test") == found.count("validation") == 18
    # The order of documents does not matter, and a judged test leaves more for training.
    assert splitting.split(passages[::-1], SMALL)[0][::-1] == found
    assert splitting.split(passages, SMALL, aside=("validation",))[0].count("train") == 72
    assert splitting.split(documents_of(3, 20), SMALL)[1] == "passage"
    sizes = [{"_id": f"a{n}", "doc": "large"} for n in range(200)] + documents_of(40, 1)
    found, _ = splitting.split(sizes, Splitting(share=0.1, at_least=4))
    assert found.count("test") <= 36 and found.count("train") >= 200


def test_the_stage_keeps_nothing_aside_where_people_judged(tmp_path: Path) -> None:
    data = str(toy.write_collection(tmp_path / "data", 8, 4))
    found = [{**r, "text": "t"} for r in documents_of(20, 2)]
    passages = written(tmp_path / "passages", "passages", found)
    for part, count in (("test", 0), ("validation", 4), ("train", 36)):
        stage = Split.make(passages=passages, collection=data, part=part, at_least=4)
        assert execute(stage, tmp_path / part).count == count


TRAINING = {"a": ["How do lamps work?", "Who made the lamp?"], "b": ["Where is the river?"]}
VALIDATION = {"c": ["What is a harbour?"]}
# The first is a training question too, in other letters.
TEST = {"d": ["how do LAMPS work"], "e": ["Why do stones sink?"]}


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaks")
    (root / "data").mkdir()
    execute(
        Collect.make(
            collection=str(root / "data"),
            passages=written(root / "passages", "passages", named("abcde")),
            contexts=written_contexts(root / "training", TRAINING),
            validation_contexts=written_contexts(root / "validation", VALIDATION),
            test_contexts=written_contexts(root / "test", TEST),
            each=2,
        ),
        root / "questions",
    )
    written(root / "aside", "passages", named("cde"))
    return root


def named(names: str) -> list[dict[str, str]]:
    return [{"_id": name, "text": name} for name in names]


def checked(leaky: Path, tmp_path: Path, training: str) -> Any:
    return execute(
        Leaks(questions=str(leaky / "questions"), aside=str(leaky / "aside"), training=training),
        tmp_path / "leaks",
    )


def test_repeated_questions_are_removed_from_training_and_counted(leaky: Path) -> None:
    found = artifacts.load(leaky / "questions")
    texts = {q.text for q in read_queries(found.file("train_queries.jsonl"))}
    assert texts == {"Who made the lamp?", "Where is the river?"}
    assert found.info["train"]["removed"] == {"the same text as a test question": 1}
    assert [found.info[part]["queries"] for part in ("test", "validation")] == [2, 1]


def test_texts_of_the_test_are_refused_in_training(leaky: Path, tmp_path: Path) -> None:
    """As they were generated, before repeated questions were removed."""
    sinks = {"b": ["Where is the river?"], "e": ["What sinks?"]}
    leaking = written_contexts(tmp_path / "all", sinks)
    group = {"_id": "0", "query_ids": ["b#q0"], "queries": ["why do stones sink"]}
    written(tmp_path / "groups", "groups", [group])
    for training, said in (
        (leaky / "training", "has the text of the question 'test .*How do lamps work"),
        (leaking, "all has a query of the passage 'e'"),
        (tmp_path / "groups", "groups has the text of the question 'test "),
    ):
        with pytest.raises(UserError, match=said):
            checked(leaky, tmp_path, str(training))


def test_a_query_log_trains_and_measures_nothing(leaky: Path, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "queries.jsonl").write_text('{"_id": "1", "text": "river lamps"}\n')
    given = {f"{part}_contexts": str(leaky / part) for part in ("validation", "test")}
    given |= {"collection": str(tmp_path / "log"), "passages": str(leaky / "passages")}
    found = execute(Collect.make(**given), tmp_path / "out")
    assert found.info["test"]["from"] == "g"
    assert found.info["train"]["from"] == "query log without judgements"
    assert {q.id for q in read_queries(found.file("train_queries.jsonl"))} == {"log:1"}


def test_names_become_judgements(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = [
        {"_id": "a#0", "title": "lib.stack", "text": "Stacks.", "aliases": ["lib.np.stack"]},
        {"_id": "a#1", "title": "lib.stack", "text": "Parameters."},
        {"_id": "b#0", "title": "lib.cut", "text": "Cuts."},
    ]
    passages, file = written(tmp_path / "passages", "passages", found), tmp_path / "q.jsonl"

    def made(*lines: dict[str, Any]) -> artifacts.Artifact:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return execute(Judge(questions=str(file), passages=passages), tmp_path / "out")

    gone = {"_id": "q3", "text": "gone", "relevant": ["lib.old"], "split": "dev"}
    with pytest.raises(UserError, match="has a name that answers a question"):
        made(gone)
    named = made(
        {"_id": "q1", "text": "pile up", "relevant": ["lib.np.stack", "lib.cut"], "split": "test"},
        {"_id": "q2", "text": "divide", "relevant": ["lib.cut"], "split": "dev"},
        gone,
    )
    assert named.kind == "questions" and named.count == 2 and named.info["left_out"] == 1
    expected = {"q1": "pile up"}, {"q1": {"a#0": 1, "b#0": 1}}
    assert asked(named, "test") == expected
    assert asked(named, "dev") == ({"q2": "divide"}, {"q2": {"b#0": 1}})


PAGES = [
    {"_id": "docs/setup.md#0", "doc": "docs/setup.md", "path": "docs/setup.md", "text": "Install."},
    {"_id": "docs/setup.md#1", "doc": "docs/setup.md", "path": "docs/setup.md", "text": "Run."},
    {"_id": "a/index.md#0", "doc": "a/index.md", "path": "a/index.md", "text": "First."},
    {"_id": "index.md#0", "doc": "index.md", "path": "index.md", "text": "Top."},
    {"_id": "b/page.md#0", "doc": "b/page.md", "path": "b/page.md", "text": "One."},
    {"_id": "c/page.md#0", "doc": "c/page.md", "path": "c/page.md", "text": "Another."},
]


@pytest.mark.parametrize(
    "text",
    [
        "how to begin?\tsetup.md\nwhat is it, in short?\tindex.md#0\nhow to begin?\tindex.md\n",
        'Answer,Question\nsetup.md,how to begin?\nindex.md#0,"what is\nit, in short?"\n'
        "index.md,how to begin?\n",
        "how to\u2028begin?,setup.md\r\nhow to\x0cbegin?,index.md\r\n"
        '"what is\x85it, in short?",index.md#0\r\n',
        '{"question": "how to begin?", "answer": ["setup.md", "index.md"]}\n'
        '{"question": "what is it, in short?", "answer": "index.md#0"}\n',
    ],
)
def test_files_and_ids_answer_questions_of_ones_own(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text)
    passages = written(tmp_path / "passages", "passages", PAGES)
    file = str(tmp_path / "mine.csv")
    made = execute(Ask(questions=file, passages=passages), tmp_path / "out")
    texts = {query.text: query.id for query in read_queries(made.path)}
    qrels = by_query(read_judgements(made.path / "qrels" / "test.tsv"))
    assert {text: set(qrels[name]) for text, name in texts.items()} == {
        "how to begin?": {"docs/setup.md#0", "docs/setup.md#1", "index.md#0"},
        "what is it, in short?": {"index.md#0"},
    }
    # A folder of judged questions is a test as well.
    again = execute(Ask(questions=str(made.path), passages=passages), tmp_path / "again")
    assert again.file("qrels/test.tsv").read_text() == made.file("qrels/test.tsv").read_text()


def test_answers_that_are_nowhere_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = written(tmp_path / "passages", "passages", PAGES)

    def ask(text: str, name: str = "mine.tsv") -> artifacts.Artifact:
        (tmp_path / name).write_text(text)
        file = str(tmp_path / name)
        return execute(Ask(questions=file, passages=passages), tmp_path / "out")

    for text, why in (
        ("begin?\tsetup.mdx\n", "mine.tsv:1: no .* 'setup.mdx'; did you mean 'docs/setup.md'"),
        ("begin?\tpage.md\n", "2 files are called 'page.md'; give the path, such as 'b/page.md'"),
        ("what, who?,setup.md\n", "3 columns; expected a question and its answer"),
        ("begin?\tsetup.md\nwho?\t\n", "mine.tsv:2: a question or its answer is missing"),
        ('{"question": "who?", "answer": []}\n', "mine.tsv:1: a question or its answer is missing"),
        ("question,answer\n", "no question in the file"),
    ):
        with pytest.raises(UserError, match=why):
            ask(text)
    with pytest.raises(UserError, match="same name .*b/page.md.*rename their file"):
        ask("begin?\tsetup.md\n", "page.md")
    lines = [f"question {number}\tsetup.md\n" for number in range(10)]
    assert ask("".join([*lines, "who?\tgone.pdf\n"])).count == 10
    assert "1 of 11 answers are left out" in capsys.readouterr().err


def test_questions_of_ones_own_are_the_test_and_train_nothing(leaky: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text("who made the LAMP\tc\n")
    given = {"passages": str(leaky / "passages"), "collection": str(tmp_path / "asked")}
    execute(
        Ask(questions=str(tmp_path / "mine.tsv"), passages=given["passages"]), tmp_path / "asked"
    )
    assert execute(Split.make(**given, part="test"), tmp_path / "test").count == 0
    aside = {f"{part}_contexts": str(leaky / "validation") for part in ("validation", "test")}
    made = Collect.make(**given, **aside, contexts=str(leaky / "training"), each=2)
    found = execute(made, tmp_path / "out")
    assert found.info["test"] == {"from": "qrels/test.tsv", "queries": 1}
    assert found.info["train"]["removed"] == {"the same text as a test question": 1}


def test_questions_are_judged_unjudged_or_of_the_test(tmp_path: Path) -> None:
    folders = [
        toy.write_collection(tmp_path / name, 10, queries, train=queries // 2 + 1)
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
    (folders[0] / "queries.jsonl").write_text('{"_id": "q0", "text": "who?"}\n')
    with pytest.raises(UserError, match="query 'q1' has no text among the queries"):
        execute(Unite(collections=joined), tmp_path / "out")


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
