"""`qac prepare`: same bytes everywhere, resumable, nothing is dropped in silence."""

import json
from pathlib import Path

import pytest

from qac_jax import artifacts, cli
from qac_jax.errors import Interrupted
from qac_jax.formats.records import Records
from qac_jax.text import passages, tokenizers


WORDS = (
    "tide mill wheel stone barley creek gate pond miller village dam oak clay hour water".split()
)


def sentence(number: int) -> str:
    words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(6 + number % 9)]
    return f"The {' '.join(words)}."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """120 documents of up to 40 sentences."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    with path.open("w") as file:
        for i in range(120):
            text = " ".join(sentence(i * 41 + j) for j in range(1 + i % 40))
            file.write(json.dumps({"_id": f"d{i}", "title": f"Mill {i}", "text": text}) + "\n")
    return path


def prepare(out: Path, *flags: object) -> artifacts.Artifact:
    arguments = ["prepare", "--out", str(out), *map(str, flags)]
    assert cli.main(arguments) == 0
    return artifacts.load(out, "passages")


def complaint(capsys, *flags: object) -> str:
    assert cli.main(["prepare", *map(str, flags)]) == 2
    said = capsys.readouterr().err.strip().split("\n")[-1]
    assert said.startswith("qac: ")
    return said


def records(artifact: artifacts.Artifact) -> list[dict]:
    return list(Records(artifact))


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The corpus in three shards, made in this process."""
    out = tmp_path_factory.mktemp("whole") / "A"
    return prepare(out, "--documents", corpus, "--max_tokens", 48, "--shards", 3, "--workers", 1)


def test_passages_cover_the_documents_in_order(whole, corpus):
    found = records(whole)
    assert whole.count == len(found) > 240
    texts = {d["_id"]: d for d in map(json.loads, corpus.read_text().splitlines())}
    for key, document in texts.items():
        mine = [r for r in found if r["doc"] == key]
        assert [r["position"] for r in mine] == list(range(len(mine)))
        assert [r["_id"] for r in mine] == [f"{key}#{i}" for i in range(len(mine))]
        assert " ".join(r["text"] for r in mine) == document["text"]
        assert {r["title"] for r in mine} == {document["title"]}
    assert max(tokenizers.load().count([r["text"] for r in found])) <= 48
    assert whole.info["documents"] == 120
    assert len(whole.matching("passages-")) == 3


@pytest.mark.slow
def test_processes_change_nothing(whole, corpus, tmp_path):
    flags = ["--documents", corpus, "--max_tokens", 48, "--shards", 3, "--workers", 2]
    again = prepare(tmp_path / "A", *flags)
    assert again.identity == whole.identity
    assert again.key == whole.key
    assert not (tmp_path / "A" / ".scratch").exists()


def test_an_interrupted_run_goes_on_where_it_was(whole, corpus, tmp_path, monkeypatch):
    ran = []
    real = passages.prepare_shard

    def stops_at_the_third(job):
        ran.append(job.shard.index)
        if len(ran) == 3:
            raise Interrupted(15)
        return real(job)

    monkeypatch.setattr(passages, "prepare_shard", stops_at_the_third)
    flags = ["--documents", str(corpus), "--max_tokens", "48", "--shards", "3", "--workers", "1"]
    out = tmp_path / "A"
    assert cli.main(["prepare", "--out", str(out), *flags]) == 143
    assert prepare(out, *flags).identity == whole.identity
    assert ran == [0, 1, 2, 2]


def test_ids_that_repeat_over_shards(tmp_path, capsys):
    path = tmp_path / "c.jsonl"
    lines = [{"_id": f"d{i % 20}", "text": f"{sentence(i)} {sentence(i + 1)}"} for i in range(21)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--documents", path, "--shards", 4, "--workers", 1]
    said = complaint(capsys, "--out", tmp_path / "A", *flags)
    assert f"{path}:21: the id of document 'd0' was there before" in said and "--skip_bad" in said
    made = prepare(tmp_path / "B", *flags, "--skip_bad", 1)
    assert made.info["skipped"] == 1 and made.info["documents"] == 20
    assert list(dict.fromkeys(r["doc"] for r in records(made))) == [f"d{i}" for i in range(20)]
    assert sum(r["doc"] == "d0" and r["position"] == 0 for r in records(made)) == 1
    assert "c.jsonl\t21\t" in (tmp_path / "B" / "skipped.tsv").read_text()


def test_errors_of_workers_come_home(corpus, tmp_path, capsys):
    path = tmp_path / "c.jsonl"
    path.write_text(corpus.read_text() + "{broken\n")
    flags = ["--documents", path, "--shards", 2, "--workers", 2, "--cut", "none"]
    said = complaint(capsys, "--out", tmp_path / "A", *flags)
    assert f"{path}:121: " in said
    path.write_text(corpus.read_text())
    assert prepare(tmp_path / "A", *flags).info["documents"] == 120, "mended, in the same folder"


def test_a_vocabulary_learned_on_the_way(corpus, tmp_path):
    flags = ["--documents", corpus, "--train_vocab", 90, "--workers", 1]
    made = prepare(tmp_path / "A", *flags, "--max_tokens", 40)
    assert prepare(tmp_path / "B", *flags, "--max_tokens", 40).identity == made.identity
    learned = tokenizers.load(str(tmp_path / "A" / "tokenizer"))
    assert learned.vocab_size == 90
    assert max(learned.count([r["text"] for r in records(made)])) in range(30, 41)
    # The same vocabulary, given instead of learned, gives the same passages.
    given = ["--tokenizer", tmp_path / "A" / "tokenizer", "--max_tokens", 40, "--workers", 1]
    again = prepare(tmp_path / "C", "--documents", corpus, *given)
    assert records(again) == records(made)


def test_mistakes_are_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "The mill stopped."}\n')
    for flags, said in {
        "--format python_docs": "python_docs reads --packages",
        "--format bier --documents .": "'beir'",
        "--format python_docs --packages json --documents .": "give that one alone",
        "--documents . --max_tokens 3": "max_tokens = 3; expected at least 8",
        "--documents . --options x": "not of the form name=value",
        "--documents nowhere.jsonl": "nowhere.jsonl does not exist",
    }.items():
        assert said in complaint(capsys, "--out", tmp_path / "A", *flags.split())
